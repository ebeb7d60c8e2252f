"""The recipes, and the tables of `hetfl list`."""

import json
from typing import Any, get_args

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hetfl_flwr.config import KEYS, RunConfig, meaning, read_toml
from hetfl_flwr.data import data_spec
from hetfl_flwr.methods import Algorithm, check_options, find, names
from hetfl_flwr.models import assign, build_model
from hetfl_flwr.server.messaging.member import Sharing
from hetfl_flwr.strategy import Sends
from simulations.cli import facts
from simulations.cli.command import app
from simulations.cli.facts import Kind
from simulations.cli.listing import table
from simulations.cli.options import RECIPES

PATHS = sorted(RECIPES.glob("*.toml"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_is_a_valid_config_whose_models_fit_its_data(path):
    values = read_toml(path)
    config = RunConfig.from_flat(values)
    check_options(config)
    assert {"algorithm", "dataset", "clients", "models", "rounds"} <= set(values)
    assert path.stem.startswith((find(config.algorithm).name, config.dataset))  # no paper's: called by the data set
    for model in {assign(config.models, client_id) for client_id in range(config.clients)}:
        build_model(model, data_spec(config.dataset), seed=config.seed)


def test_the_ten_clients_of_the_heterogeneous_recipe_have_ten_models():
    config = RunConfig.from_flat(read_toml(RECIPES / "fedhe-mnist-heterogeneous.toml"))
    assert [assign(config.models, client_id) for client_id in range(10)] == [f"fedhe:{number}" for number in range(10)]
    homogeneous = RunConfig.from_flat(read_toml(RECIPES / "fedhe-mnist-homogeneous.toml"))
    assert homogeneous.with_values({"models": "fedhe"}) == config


DIGITS = RunConfig(dataset="digits")


def shown(kind: Kind, config: RunConfig = DIGITS) -> str:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(table(kind, facts.live(kind, config)))
    return capture.get()


def test_every_key_is_listed_with_its_default_and_meaning():
    rows = shown(Kind.KEYS).splitlines()
    for key, field in KEYS.items():
        [row] = [row for row in rows if row.startswith(f"│ {key} ")]
        assert repr(field.default) in row
        assert meaning(key)[:40] in row


def listed() -> dict[str, dict[str, str]]:
    """The table of algorithms, in its order: row by name, cell by column."""
    of = table(Kind.ALGORITHMS, facts.live(Kind.ALGORITHMS, DIGITS))
    headers = [str(column.header) for column in of.columns]
    rows = zip(*([str(cell) for cell in column.cells] for column in of.columns), strict=True)
    named = headers.index("name")
    return {row[named]: dict(zip(headers, row, strict=True)) for row in rows}


def test_every_algorithm_is_listed_with_its_paper_its_wire_and_its_keys():
    rows = listed()
    assert sorted(rows) == names()
    for name, row in rows.items():
        assert row["what it does"].endswith(".")
        assert (row["paper"] == "-") == (name == "local")
        assert row["what crosses the wire"]
        defaults = find(name).defaults
        assert row["options = default"].splitlines() == [f"{name}.{key} = {value}" for key, value in defaults.items()]
        assert find(name).strategy.heterogeneous or row["needs"].startswith("one ")


def test_every_method_of_the_house_says_what_leaves_a_client():
    *known, _ = get_args(Sends)
    sides = [each.strategy for name in names() for each in find(name).modes.values() or [find(name)]]
    assert [side.__qualname__ for side in sides if side.sends not in known] == []


def test_a_row_says_what_the_docstrings_say():
    rows = listed()
    assert rows["fedhe"] == {
        "leaves a client": "logits",
        "name": "fedhe",
        "what it does": "Averages the class-average logits of all clients, class by class.",
        "paper": "Chan and Ngai, MSN 2021",
        "what crosses the wire": "down: logits (C, C) float32, known (C,) bool: 4 C^2 + C bytes\n"
        "up: logits (C, C) float32, counts (C,) int64: 4 C^2 + 8 C bytes (480 at C = 10)",
        "needs": "equal classes",
        "options = default": "\n".join(f"fedhe.{key} = {value}" for key, value in find("fedhe").defaults.items()),
    }
    assert rows["fedmd"]["needs"] == "public samples with labels\nequal classes, one shape of input"
    assert rows["fedmd"]["what crosses the wire"].splitlines() == [
        "down: digested (R,) int32, consensus (R, C) float32, asked (A,) int32: 4 R (C + 1) + 4 A bytes",
        'up: logits (A, C) float32: 4 A C bytes; with consensus = "softmax" they are called softmax',
    ]
    assert rows["local"]["what crosses the wire"] == "nothing either way"
    assert rows["fedhenn"]["needs"] == "public samples without labels\nmode=homogeneous: one model"
    assert rows["fedhenn"]["what crosses the wire"].splitlines()[1:] == [
        "up: representations (R, D) float32: 4 R D bytes",
        "mode=homogeneous: down: the weights, aligned (R,) int32: 4 bytes a parameter and running statistic, and 4 R",
        "mode=homogeneous: up: the weights",
    ]
    assert rows["fedavg"]["needs"] == "one model"


def own(doc: str, **attributes: Any) -> Any:
    """A server side with this docstring and these attributes; they may be set as late as when it is built."""

    def build(self: Any) -> None:
        vars(self).update(attributes)

    return type("Own", (), {"__doc__": doc, "__init__": build, "heterogeneous": True, "sharing": None, "width": 0})


@pytest.mark.parametrize(
    ("strategy", "needs"),
    [
        (own("Does."), "-"),
        (own("Does.", sharing=None, width=0), "-"),
        (own("Does.", heterogeneous=False), "one model"),
        (own("Does.\n\nNeeds  one body", heterogeneous=False), "one body"),
        (own("Does.", sharing=Sharing()), "public samples with labels"),
        (
            own("Does.", sharing=Sharing(labelled=False), width=64),
            "public samples without labels\none embedding width (64)",
        ),
        (
            own("Does.\n\nNeeds  like bodies;\n       heads may differ\nState  x.", width=8),
            "one embedding width (8)\nlike bodies; heads may differ",
        ),
    ],
)
def test_needs_are_read_off_the_attributes_and_a_paragraph_of_their_own(strategy, needs, monkeypatch):
    monkeypatch.setattr("hetfl_flwr.methods.names", lambda: ["own"])
    monkeypatch.setattr("hetfl_flwr.methods.find", lambda name: Algorithm(name, strategy, own("Client.")))
    assert listed()["own"]["needs"] == needs


@pytest.mark.parametrize(
    ("doc", "items"),
    [
        ("X.\n\nWire   as in `strategies.fedavg.FedAvg`.\nState  y.", ["as in fedavg"]),
        ("X.\n\nWire   all of it. When asked,\n       again.\n       Once: more.", ["all of it. When asked, again"]),
        ("X.\n\nWire   down: a\n         and\n       b\n       up: c\n       Once: d.", ["down: a and b", "up: c"]),
        (
            "X.\n\nWire   down: a; up: b\n       ``mode``: c\n       down: d",
            ["down: a; up: b", "down: d"],
        ),
        ("X.\n\nWire   down: ``a``\n       ``mode``: c\n\n       up: of no paragraph", ["down: a"]),
        ("X.\n\nWires  down: a", []),
        ("X.", []),
    ],
)
def test_the_wire_is_what_goes_down_and_up_in_a_round_or_the_first_item(doc, items):
    assert facts.wire(doc) == items


@pytest.mark.parametrize(
    ("doc", "short"),
    [
        ('X.\n\nRoe and\nDoe, "A\nTitle, 1999",\nVENUE 2021. More of 2022.', "Roe and Doe, VENUE 2021"),
        ('X.\n\nRoe et al., "Title", 2020 (arXiv 2006.16765).', "Roe et al., 2020 (arXiv 2006.16765)"),
        ("X. By Roe, 2021.\n\nNot a citation.", ""),
        ("X.", ""),
    ],
)
def test_a_citation_is_shortened_by_its_title(doc, short):
    assert facts.citation(doc) == short


def test_the_record_is_what_it_was_made_of():
    """What `hetfl list` tells without importing it; `python -m simulations.cli.facts` writes it anew."""
    assert facts.RECORD.read_text(encoding="utf-8") == facts.record()


@pytest.mark.parametrize("kind", Kind)
def test_json_tells_each_row_of_the_table(kind):
    called = CliRunner().invoke(app, ["list", kind, "--json"])
    assert called.exit_code == 0, called.output
    told = json.loads(called.stdout)
    assert list(told) == [kind]
    assert table(kind, told[kind]).row_count == len(told[kind]) > 5
    assert all(next(iter(row.values())) for row in told[kind])
