"""HTML reports: their content, that they run and fetch nothing, and how they look."""

import json
from base64 import b64decode
from pathlib import Path

import matplotlib as mpl
import pytest
from fixtures.folders.pages import Page
from fixtures.folders.run_folders import LINES, SILENT, client, finish, line, make

from hetfl_flwr.errors import RunFolderError
from simulations.reports.report import write_report

EVIL = "<script>alert(1)</script> & \"quoted\" 'too'"


def report(folders: list[Path], path: Path) -> Page:
    return Page(write_report(folders, path / "report.html"))


def pictures(page: Page) -> list[str]:
    """Return the pictures of a page as SVG."""
    return [b64decode(str(one["src"]).partition(",")[2]).decode() for one in page.of("img")]


@pytest.mark.slow
def test_report_of_one_run(tmp_path):
    """Clients at 0 and 20 %, then 40 and 60 %, then 70 and 90 %; client 1 fails in rounds 1 and 2 for one reason."""
    failure = {"partition": 1, "stage": "train", "reason": "out of\nmemory", "node": 1}
    lines = [LINES[0], line(1, [0.4, 0.6], failures=[failure]), line(2, [], failures=[failure]), LINES[3]]
    page = report([make(tmp_path / "run", lines, rounds=9, partition="iid")], tmp_path)
    assert "unfinished: 3 of 9 rounds" in page.words
    assert [page.column("Clients of fedhe, seed 0", name) for name in ("before", "after")] == [
        ["0.0", "20.0"],
        ["70.0", "90.0"],
    ]
    assert page.tables["Failures and uploads left out"][1:] == [["1\u20132", "client 1", "train", "out of memory"]]
    assert ["payload up", "300 bytes"] in page.tables["run"]
    assert [str(one["alt"]).endswith("accuracy from 10.0 to 80.0 %") for one in page.of("img")][:2] == [True, True]
    assert page.column("Settings that differ from the defaults", "key") == ["dataset", "rounds", "output-dir"]
    assert 'partition = "iid"' in page.words


def test_tables_and_pictures_of_several_runs_name_method_and_seed(tmp_path):
    """Their folders have the same names, as in sweeps of several methods."""
    for method in ("fd", "fedhe"):
        (tmp_path / method).mkdir()
        make(tmp_path / method / "seed=0", algorithm=method)
    page = report([tmp_path], tmp_path)
    assert {"Clients of fd, seed 0", "Clients of fedhe, seed 0"} <= page.tables.keys()
    assert str(page.of("img")[0]["alt"]).startswith("fd, seed 0: accuracy from ")


@pytest.mark.slow
def test_nothing_from_a_run_folder_is_markup(tmp_path):
    """Reason, model, folder, config value and config key, in a page of one run and in one of two."""
    failure = {"partition": 0, "stage": EVIL, "reason": EVIL, "node": 1}
    folder = make(tmp_path / "<b>run", [LINES[0], line(1, [0.4, 0.6], failures=[failure])], models=EVIL, algorithm=EVIL)
    (folder / "clients.json").write_text(json.dumps([client(0, model=EVIL)]))
    for folders in ([folder], [folder, make(tmp_path / "plain")]):
        page = report(folders, tmp_path)
        assert page.words.count(EVIL) > 3
        assert page.of("script") == []
        assert "<b>run" in page.words
        assert not any("<script" in picture for picture in pictures(page))


@pytest.mark.slow
@pytest.mark.parametrize("name", [r"$\frac$", r"$a$ \$ \\ $", "bell\x07\x1b[31m", "x" * 5000])
@pytest.mark.filterwarnings("error")
def test_pictures_can_show_any_name(tmp_path, name):
    """Formulas are not rendered, unprintable characters are escaped, and the middle of very long names is left out."""
    page = report([make(tmp_path / "run", algorithm=name), make(tmp_path / "other")], tmp_path)
    assert len(pictures(page)) == 2  # the second shows the partition


def test_the_page_does_not_depend_on_matplotlib_settings(tmp_path):
    folders = [make(tmp_path / "run"), make(tmp_path / "own", SILENT, algorithm="local")]
    first, second = tmp_path / "first.html", tmp_path / "second.html"
    write_report(folders, first)
    with mpl.rc_context({"text.color": "white", "axes.edgecolor": "white", "font.size": 20, "svg.fonttype": "none"}):
        write_report(folders, second)
    assert first.read_bytes() == second.read_bytes()


def test_the_page_is_self_contained(tmp_path):
    page = report([make(tmp_path / "run"), make(tmp_path / "own", SILENT, algorithm="local")], tmp_path)
    assert {tag for tag, _ in page.tags} & {"script", "iframe", "object", "embed", "base", "form"} == set()
    kinds = {"src", "srcset", "href"}
    links = [value for _, attributes in page.tags for key, value in attributes.items() if key in kinds]
    assert all(str(value).startswith("data:") for value in links)
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    policy = next(meta["content"] for meta in page.of("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    text = (tmp_path / "report.html").read_text()
    assert "@import" not in text
    assert "url(" not in text


def test_the_partition_is_computed_from_the_data(tmp_path, make_config, run_federation):
    folder = run_federation(make_config(rounds=1))
    assert str(report([folder], tmp_path).of("img")[-1]["alt"]).startswith("digits, ")
    clients = json.loads((folder / "clients.json").read_text())
    clients[0]["train"] -= 1
    (folder / "clients.json").write_text(json.dumps(clients))
    assert "different rows than its config gives here" in report([folder], tmp_path).words


def test_report_of_a_run_that_has_just_begun(tmp_path):
    """No rounds, no clients and no data: the page says so."""
    page = report([make(tmp_path / "run", [], dataset="/nowhere/at/all")], tmp_path)
    assert "No round was evaluated" in page.words
    assert page.tables["Clients of fedhe, seed 0"][1:] == []


def test_missing_or_broken_runs_and_unwritable_files_are_refused(tmp_path, refusal):
    folder = make(tmp_path / "run")
    for runs, path in (([tmp_path / "none"], tmp_path / "r.html"), ([], tmp_path / "r.html"), ([folder], folder)):
        refusal(RunFolderError, write_report, runs, path)
    (folder / "summary.json").write_text("{}\n")
    assert "summary.json" in refusal(RunFolderError, write_report, [folder], tmp_path / "r.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path, browser, scheme):
    """On an offline phone: no requests, no errors, and nothing is wider than the screen."""
    failure = {"partition": 0, "stage": "train", "reason": EVIL + "x" * 200, "node": 1}
    one = make(tmp_path / "run", [*LINES[:3], line(3, [0.7, 0.9], failures=[failure])])
    path = write_report([finish(one), make(tmp_path / "own", SILENT, algorithm="local")], tmp_path / "report.html")
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme, offline=True)
    page, events = context.new_page(), []
    page.on("console", lambda message: events.append(message.text))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("dialog", lambda dialog: (events.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: events.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert [one for one in events if not one.startswith("data:")] == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    sizes = page.eval_on_selector_all("img", "all => all.map(one => [one.naturalWidth, one.clientWidth])")
    assert sizes
    assert all(0.75 * natural < width <= natural for natural, width in sizes), "texts in a picture become too small"
    scrolled = page.eval_on_selector_all("figure", "all => all.map(one => one.scrollWidth > one.clientWidth)")
    assert not any(scrolled), "a picture is wider than the screen"
    lightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    assert (page.evaluate(lightness) > 384) == (scheme == "light")
    assert len(page.screenshot(full_page=True)) > 20_000
    context.close()
