"""Clients by name: owners, files, folders and nodes; how many clients they make; one file as a data set."""

import json
from typing import ClassVar

import pandas as pd
import pytest
import torch
from fixtures.data.columns import lacking, lay, noted
from fixtures.data.loading import load_client, load_clients
from fixtures.federations.members import member
from flwr.app import Context, Error, Message, MessageType, RecordDict
from PIL import Image

from hetfl_flwr import client_app
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import Reading, Split, most_clients
from hetfl_flwr.data.clients import joined
from hetfl_flwr.errors import DataError, RunFolderError
from hetfl_flwr.runs.settings import resolved
from hetfl_flwr.server.messenger import reason
from hetfl_flwr.wire.messages import MEMBER
from hetfl_flwr.wire.naming import called, client_name, distinct
from simulations.api import load, run
from simulations.engine.objects import stored
from simulations.inference.loading import client_number
from simulations.reports.partition import load_split
from simulations.reports.plots.comparison import run_figure
from simulations.reports.report import report_page
from simulations.reports.runs import load_run
from simulations.testing.contract import entries

OWNERS = {"a/b": 30, "..": 24, "General Hospital": 36, "x" * 300: 30}
"""Rows by owner; two of the names are no file names, one is longer than any."""


@pytest.fixture
def patients():
    """Return the rows of a hospital table: two numbers, an owner, and a class that both owners of a pair have."""
    rows = range(120)
    return pd.DataFrame(
        {
            "age": [row + 0.5 for row in rows],
            "bp": [row * 7 % 40 for row in rows],
            "hospital": [owner for owner, count in OWNERS.items() for _ in range(count)],
            "sick": ["ill" if row % 3 else "well" for row in rows],
        }
    )


@pytest.fixture
def table(patients, tmp_path):
    return lay(tmp_path, {"patients.csv": patients}) / "patients.csv"


@pytest.fixture
def wards(patients, tmp_path):
    """Return a folder of three files: the wards north, south and west."""
    rows = patients.drop(columns="hospital")
    files = {name: rows[40 * n : 40 * n + 30 + n] for n, name in enumerate(("north", "south", "west"))}
    return lay(tmp_path / "wards", {f"{name}.csv": some for name, some in files.items()})


def split(dataset, clients=1, **keys):
    return Split(dataset=str(dataset), clients=clients, seed=0, reading=Reading(label_column="sick"), **keys)


def data_of(dataset, clients, **keys):
    return load_clients(clients, dataset=dataset, **{"label_column": "sick"} | keys)


def rows_of(data):
    return len(data.train) + len(data.validation) + len(data.test)


class TestNames:
    def test_a_client_is_called_by_its_owner(self, table, patients):
        """Owners are sorted by value; each client has the rows that pandas counts; merged ones are named."""
        clients = data_of(table, 4, partition="natural:hospital")
        assert [rows_of(data) for data in clients] == patients.groupby("hospital").size().tolist()
        assert [data.name for data in clients][:3] == ["..", "General Hospital", "a/b"]
        assert (len(clients[3].name), set(clients[3].name)) == (100, set("x. "))
        names = [data.name for data in data_of(table, 3, partition="natural:hospital")]
        assert names == [".. + 1 more", "General Hospital", "a/b"]
        assert joined(["North", "", "South"]) == "North + South"
        assert len(joined([f"ward {number}" for number in range(1000)])) <= 100

    def test_files_folders_and_domains_give_names_and_one_data_set_none(self, wards, table):
        for dataset, clients, keys, names in (
            (wards, 3, {"partition": "files"}, ["north", "south", "west"]),
            (table, 2, {}, ["", ""]),
            (f"digits,{table}", 2, {}, ["digits", "patients"]),
            ("rotated-digits", 5, {"label_column": ""}, ["0°", "20°", "40°", "60°", "0°"]),
        ):
            assert [data.name for data in data_of(dataset, clients, **keys)] == names

    @pytest.mark.parametrize(
        ("own", "dataset", "name", "share", "called"),
        [
            ({"name": " Ward\n 7 "}, "/data/x", "North", False, "Ward 7"),
            ({"name": 7}, "digits", "", False, "7"),
            ({}, "/data/x", "North", False, ""),
            ({}, "/data/x", "North", True, "North"),
            ({"dataset": "/data/st mary"}, "/data/st mary", "", True, "st mary"),
            ({"dataset": "/data/st mary"}, "/data/st mary", "", False, ""),
            ({"dataset": "digits"}, "digits", "", True, ""),
        ],
    )
    def test_a_name_of_a_node_goes_first_and_its_data_s_only_where_it_may(self, own, dataset, name, share, called):
        assert client_name(own, dataset, name, share=share) == called

    def test_names_that_look_alike_get_numbers(self):
        """Also one that looks like what another gets."""
        names = distinct({0: "North", 1: "north ", 2: "South", 3: "", 4: "", 5: "North (0)"})
        assert (names[2], names[3], names[4]) == ("South", "", "")
        assert len({" ".join(name.casefold().split()) for name in names.values() if name}) == 4
        assert distinct({3: "\uff21", 7: "a"}) == {3: "\uff21 (3)", 7: "a (7)"}

    def test_a_registration_tells_the_name_and_no_private_one(self, table, monkeypatch):
        flat = RunConfig(dataset=str(table), label_column="sick", partition="natural:hospital").to_flat()

        def registered(**own):
            context = Context(1, 9, {"partition-id": 1, "num-partitions": 4, **own}, RecordDict(), flat)
            return client_app.app(Message(RecordDict(), 9, MessageType.QUERY), context).content[MEMBER]["name"]

        monkeypatch.setattr(client_app, "simulated", lambda: False)
        for module in ("node", "registration"):
            monkeypatch.setattr(f"hetfl_flwr.node.{module}.simulated", lambda: False)
        assert registered() == ""
        assert registered(**{"share-names": True}) == "General Hospital"
        assert registered(name="Ward 7") == "Ward 7"

    def test_failures_name_the_client(self):
        who = member(3, name="General Hospital", model="lenet5")
        assert str(who) == called(3, "General Hospital", "lenet5") == "client 3 (General Hospital, lenet5)"
        why = "train, round 2: RuntimeError: the disk is full"
        raised = Message(Error(0, f"client 3, {why}"), reply_to=Message(RecordDict(), 9, MessageType.TRAIN))
        for own in (True, False):
            assert reason(raised, who, own=own).startswith("client 3 (General Hospital)")
            assert reason(raised, member(4), own=own).startswith("client 4 (linear)")
        assert reason(raised, member(3), own=True) == f"client 3, {why}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a run of four owners, two of whose names differ in capitals alone."""
    home = tmp_path_factory.mktemp("run")
    owners = ["North"] * 30 + ["north"] * 30 + ["a/b"] * 30 + ["<b>$x$"] * 30
    rows = {"age": [row + 0.5 for row in range(120)], "hospital": owners, "sick": ["ill", "well", "well"] * 40}
    keys = {"label_column": "sick", "partition": "natural:hospital", "models": "mlp", "batch_size": 10}
    dataset = str(lay(home, {"t.csv": rows}) / "t.csv")
    return run("fedhe", dataset=dataset, rounds=1, out=home / "run", progress=False, **keys).folder


class TestRuns:
    NAMES = ("<b>$x$", "North (1)", "a/b", "north (3)")

    def test_tables_pictures_and_frames_have_the_names(self, folder):
        assert [client["name"] for client in json.loads((folder / "clients.json").read_text())] == [*self.NAMES]
        assert load_run(folder).config["clients"] == 4
        result = load(folder)
        assert result.clients.query("round == 1").name.tolist() == [*self.NAMES]
        labels = run_figure(load_run(folder)).axes[0].get_legend_handles_labels()[1]
        assert [label.replace("\\$", "$") for label in labels[:4]] == [f"{name}: mlp" for name in self.NAMES]
        page, shown = report_page([load_run(folder)]), ("North (1)", "a/b", "&lt;b&gt;$x$")
        assert "<b>$x$" not in page
        assert all(name in result._repr_html_() for name in shown)
        assert all(name in page for name in (*shown, "ill: ", "well: "))

    def test_recall_is_by_the_names_of_classes_everywhere(self, folder, tmp_path):
        """The last round's frame says what clients.json says; rounds.jsonl has the same by number.

        Classes without names, as where these stay on the node, keep their numbers.
        """
        records = json.loads((folder / "clients.json").read_text())
        assert all(client["class_names"] == ["ill", "well"] for client in records)
        result, keys = load(folder), ("recall", "untested", "unpredicted")
        last = result.clients.query("round == 1").set_index("client")
        for client in records:
            row = last.loc[client["partition"]]
            assert {key: row[key] for key in keys} == {key: client[key] for key in keys}
            assert list(row.recall) == ["ill", "well"]
        lines = entries(folder)
        first = result.clients.query("round == 0").recall.apply(pd.Series)
        assert first[["ill", "well"]].to_numpy().tolist() == [lines[0]["classes"][str(k)]["recall"] for k in range(4)]
        assert last.recall.apply(pd.Series).mean().to_dict() == pytest.approx(result.summary["recall"])
        for name in ("config.toml", "rounds.jsonl", "summary.json"):
            (tmp_path / name).write_bytes((folder / name).read_bytes())
        lay(tmp_path, {"clients.json": json.dumps([{**client, "class_names": None} for client in records])})
        assert set(load(tmp_path).clients.recall[0]) == {"0", "1"}

    def test_merging_is_said_by_the_run_and_its_report(self, folder, tmp_path, caplog, hetfl):
        arguments = ["--dataset", folder.parent / "t.csv", "--clients", 3, "--rounds", 1, "--out", tmp_path / "run"]
        sets = ["--set", "label-column=sick", "--set", "partition=natural:hospital", "--set", "models=mlp"]
        done = hetfl("run", "fedhe", *arguments, *sets)
        assert (done.status, "<b>$x$ + north" in done.out) == (0, True)
        for text in (done.out, done.err + caplog.text, report_page([load_run(tmp_path / "run")])):
            assert "4 owners" in text


class TestByName:
    """A client is asked for by number, or by what it is called."""

    def test_any_way_to_call_it(self, folder):
        for number, ways in (
            (0, ["<b>$x$"]),
            (1, ["North (1)", "north (1)"]),
            (2, ["A/B", "a/b.csv", 2]),
            (3, ["3", "client 3", "client 3 (north 3)"]),
        ):
            assert [client_number(folder, text) for text in ways] == [number] * len(ways)

    def test_an_unknown_name_is_refused_with_the_names(self, folder, refusal, tmp_path):
        assert "North (1)" in refusal(RunFolderError, client_number, folder, "nort (1)")
        (tmp_path / "config.toml").touch()
        for place in (tmp_path, tmp_path / "x"):
            assert "number" in refusal(RunFolderError, client_number, place, "nort")
        assert client_number(tmp_path, "1") == 1

    def test_merged_owners_and_wards_that_are_numbers(self, folder, tmp_path, refusal):
        clients = json.loads((folder / "clients.json").read_text())
        names = "1", "0 + South", "South + 7", "7b"
        renamed = [client | {"name": name} for client, name in zip(clients, names, strict=True)]
        lay(tmp_path, {"clients.json": json.dumps(renamed), "config.toml": ""})
        assert "'client 1' or 'client 0'" in refusal(RunFolderError, client_number, tmp_path, "1")
        assert [client_number(tmp_path, text) for text in ("client 1", "7", "7B", "2", 1)] == [1, 2, 3, 2, 1]
        assert "'south'" in refusal(RunFolderError, client_number, tmp_path, "south")

    def test_the_commands_and_python_take_it(self, folder, tmp_path, hetfl):
        """Exports of client 2 by name and by number are the same; so are the classes that it predicts."""
        result = load(folder)
        named, numbered = (result.model(client).state_dict() for client in ("a/b", 2))
        assert all(torch.equal(named[key], numbered[key]) for key in numbered)
        assert result.node("A/B").client_id == 2
        rows = folder.parent / "t.csv"
        wanted = hetfl("predict", folder, rows, "--client", 2).out
        assert hetfl("predict", folder, rows, "--client", "a/b")[:2] == (0, wanted)
        assert hetfl("export", folder, "--client", "a/b", "--out", tmp_path / "m.pt2")[0] == 0
        assert hetfl("predict", tmp_path / "m.pt2", rows).out == wanted
        done = hetfl("predict", folder, rows, "--client", "a/c")
        assert (done.refused, done.out, "a/b" in done.err) == (True, "", True)


class TestNumber:
    def test_as_many_clients_as_owners_or_files(self, table, wards, tmp_path):
        """Of several domains, as many in each as the one with the fewest owners has; the config of a run holds it."""
        for dataset, keys, most, own in (
            (table, {"partition": "natural:hospital"}, len(OWNERS), len(OWNERS)),
            (wards, {"partition": "files"}, 3, 3),
            (f"{wards},{table}", {"partition": "files"}, 2, None),
            (table, {}, 0, 10),
        ):
            assert most_clients(split(dataset, **keys)) == most
            config = RunConfig(dataset=str(dataset), label_column="sick", output_dir=str(tmp_path / "run"), **keys)
            assert own is None or resolved(config, "local").clients == own
            assert resolved(config.with_values({"clients": 2}), "local").clients == 2

    def test_very_many_owners_are_said_once_unless_a_number_of_clients_is(self, tmp_path, capsys):
        for owners in (100, 101):
            rows = [(row % 50, "ill" if row % 2 else "well", row // 2) for row in range(2 * owners)]
            lay(tmp_path, {f"{owners}.csv": pd.DataFrame(rows, columns=["age", "sick", "visit"])})
            keys = {"label_column": "sick", "output_dir": str(tmp_path / "run"), "partition": "natural:visit"}
            config = RunConfig(dataset=str(tmp_path / f"{owners}.csv"), **keys)
            assert [resolved(config, "local").clients for _ in range(2)] == [owners] * 2
            assert resolved(config.with_values({"clients": 5}), "local").clients == 5
        assert capsys.readouterr().err.count("101 owners") == 1


@pytest.mark.parametrize("keys", [{"partition": "natural:ward"}, {"domain_column": "ward"}])
@pytest.mark.parametrize("form", ["csv", "frame", "polars", "splits"])
def test_a_row_of_nobody_is_named_by_its_number(tmp_path, refusal, keys, form):
    """Rows have numbers from the 2 of the first on in a file, and from 0 on in a frame; blanks are no ward."""
    rows = pd.DataFrame({"age": range(40), "ward": ["n", "s"] * 20, "sick": ["ill", "well", "well", "ill"] * 10})
    rows.loc[[7, 9], "ward"] = [None, " \t"]
    if form in ("csv", "splits"):
        place = lay(tmp_path, dict.fromkeys(["p.csv"] if form == "csv" else ["train.csv", "test.csv"], rows))
    else:
        place = stored(rows if form == "frame" else pytest.importorskip("polars").from_pandas(rows))[0]
    line = refusal(DataError, load_client, dataset=place, label_column="sick", num_partitions=2, **keys)
    number = "row 9" if form in ("csv", "splits") else "row 7"
    assert lacking(line, "ward", number, "3 more" if form == "splits" else "1 more", "fill it in") == []


@pytest.mark.parametrize(
    ("wards", "keys", "words"),
    [
        (["caf\u00e9", "cafe\u0301", "North", "north"], {}, ["caf\u00e9"]),
        (["A-1", "A\u20101", "North", "north"], {}, ["'A-1'"]),
        (["n", "?", "s", "n"], {"missing_values": "?"}, ["ward", "row 3"]),
        ([1, -999, 2, 1], {"missing_values": "-999"}, ["ward", "row 3"]),
        (["1", "2", "1.0", "ICU"], {}, ["'1' and '1.0'"]),
        (["7.0", "7", "8", "ICU"], {}, ["'7' and '7.0'"]),
    ],
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_owners_that_look_alike_or_mean_nobody_are_refused(tmp_path, refusal, wards, keys, words, form):
    rows = {"a": [row / 7 for row in range(40)], "ward": wards * 10, "sick": [0, 1] * 20}
    own = {"dataset": lay(tmp_path, {f"t.{form}": rows}), "label_column": "sick", "partition": "natural:ward"}
    line = refusal(DataError, load_client, num_partitions=2, **own, **keys)
    assert lacking(line, *(word.replace("row 3", "row 2") if form == "parquet" else word for word in words)) == []
    assert "orth" not in line


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    "two",
    [
        ["1.50", "1.5x"],
        ["001", "1"],
        ["9007199254740992", "9007199254740993"],
        ["123456789012345678901", "123456789012345678902"],
    ],
)
def test_owners_are_as_they_are_written(tmp_path, two, form):
    """Float64 holds neither of two long numbers apart."""
    rows = {"a": [row / 7 for row in range(60)], "ward": two * 30, "sick": [0, 1, 1] * 20}
    keys = {"dataset": lay(tmp_path, {f"t.{form}": rows}), "label_column": "sick", "partition": "natural:ward"}
    found = load_clients(2, **keys)
    assert sorted(data.name for data in found) == sorted(two)
    assert [rows_of(data) for data in found] == [30, 30]


class TestPhotos:
    """Images in folders ``OWNER/CLASS``."""

    OWNERS: ClassVar = {"anna": (50, 90), "bert": (100, 150), "train": (0, 30)}
    """The grey levels of their images; odd ones are dogs. One has the name of a split."""

    @pytest.fixture
    def photos(self, tmp_path):
        for owner, levels in self.OWNERS.items():
            for level in range(*levels):
                place = tmp_path / "photos" / owner / ("cat", "dog")[level % 2]
                place.mkdir(parents=True, exist_ok=True)
                Image.new("L", (4, 4), level).save(place / f"{level}.png")
        return tmp_path / "photos"

    def test_each_folder_is_a_client_with_its_own_images_alone(self, photos):
        assert most_clients(Split(dataset=str(photos), clients=1, seed=0, partition="files")) == 3
        for data in load_clients(3, dataset=photos, partition="files"):
            parts = data.train, data.validation, data.test
            levels = torch.cat([part.arrays.inputs[part.rows].flatten(1)[:, 0].long() for part in parts])
            assert sorted(levels.tolist()) == list(range(*self.OWNERS[data.name]))
            assert torch.equal(torch.cat([part.labels for part in parts]), levels % 2)
            assert data.train.arrays.class_names == ("cat", "dog")

    def test_other_partitions_put_them_together_aloud(self, photos, tmp_path):
        """A list of folders has a client for each; grey images among coloured ones are noted."""
        (photos / "train").rename(photos / "carl")
        assert noted(load_client(dataset=photos, num_partitions=2).train.arrays, "anna, bert, carl")
        assert load_client(dataset=photos / "anna", num_partitions=2).train.arrays.notes == ()
        config = RunConfig(dataset=f"{photos}/anna,{photos}/bert", output_dir=str(tmp_path / "run"))
        assert resolved(config, "local").clients == 2
        for number in range(5):
            Image.new("RGB", (4, 4), number).save(photos / "anna" / "cat" / f"0{number}.png")
        other = (photos / "anna").rename(tmp_path / "other")
        assert noted(load_client(dataset=other).train.arrays, "40 of 45")


class TestPartitionCommand:
    def test_clients_and_classes_have_names(self, table):
        config = RunConfig(dataset=str(table), label_column="sick", partition="natural:hospital", clients=4)
        shown = load_split(config)
        assert shown.shares.name.tolist()[:3] == ["..", "General Hospital", "a/b"]
        assert [*shown.counts] == ["ill", "well"]

    def test_classes_of_different_data_sets_stand_in_columns_of_their_own(self, table):
        """Digits have no class ill, the table has no class 3."""
        both = load_split(RunConfig(dataset=f"digits,{table}", label_column="sick", clients=2))
        assert [*both.counts] == [*map(str, range(10)), "ill", "well"]
        own = both.counts.loc[1]
        assert both.counts.isna().to_numpy().tolist() == [[False] * 10 + [True] * 2, [True] * 10 + [False] * 2]
        assert own.sum() == both.shares.training[1]


@pytest.mark.parametrize(("features", "said"), [("all", 1), ("slices:0.5", 0)])
def test_columns_that_two_files_do_not_share_are_noted_once(
    tmp_path, features, said, patients, make_config, run_federation
):
    """Where each client is given columns of its own, nobody has misspelt them."""
    rows = patients.drop(columns="hospital")
    lay(tmp_path, {"a.csv": rows[:40], "b.csv": rows[40:80].rename(columns={"age": "ages"} if said else {})})
    keys = {"dataset": f"{tmp_path}/a.csv,{tmp_path}/b.csv", "label_column": "sick", "models": "mlp", "rounds": 2}
    folder = run_federation(make_config(algorithm="fedhe", clients=2, features=features, **keys))
    notes = (folder / "notes.txt").read_text() if (folder / "notes.txt").exists() else ""
    assert notes.count("clients have different columns: ") == said
    assert not said or "'age'" in notes
