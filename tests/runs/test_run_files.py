"""The files of a run folder: what is written is read, and what is damaged is named."""

import ast
import json
import os
from math import inf
from pathlib import Path
from typing import Any

import pytest

import clients
import hetfl_flwr
import simulations
import strategies
from hetfl_flwr.errors import Failure, RunFolderError
from hetfl_flwr.runs.record import (
    ClientRecord,
    Round,
    Summary,
    check_no_run_file,
    clients_file,
    read_clients,
    read_rounds,
    read_summary,
    round_line,
    summary_file,
)

ROUND = Round(
    3,
    1.5,
    accuracy=0.5,
    bytes_up=7,
    clients={"0": {"accuracy": 0.5, "hits": 3, "loss": 1e300}},
    failures=[Failure(-1, "train", "no\nanswer", 2**64 - 1)],
)
SUMMARY: dict[str, Any] = dict.fromkeys(sorted(Summary.__required_keys__), 0)
SUMMARY |= {"algorithm": "a", "dataset": "d", "engine": None, "accuracy_per_client": [None, 0.5], "noise_source": None}
SUMMARY |= {"versions": {"hetfl": "1"}, "epsilon": 0.25}
CLIENT: dict[str, Any] = dict.fromkeys(ClientRecord.__annotations__) | {"partition": 4, "model": "mlp", "epsilon": 0.5}


def read(folder: Path, *lines: bytes | str) -> list[Round]:
    whole = [line.encode() if isinstance(line, str) else line for line in lines]
    (folder / "rounds.jsonl").write_bytes(b"".join(line + b"\n" for line in whole))
    return read_rounds(folder)


def strict(text: str | bytes) -> Any:
    """Read JSON as other programs do."""

    def refused(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refused)


# --- written and read ----------------------------------------------------------------------------


def test_a_round_is_read_as_it_was_written_whole_numbers_too(tmp_path):
    [entry] = read(tmp_path, round_line(ROUND))
    assert entry == ROUND
    assert type(entry.clients["0"]["hits"]) is int
    assert round_line(entry) == round_line(ROUND)


@pytest.mark.parametrize("literal", ['"Infinity"', "Infinity"])
def test_an_infinite_epsilon_is_written_as_text_and_read_in_either_form(tmp_path, literal):
    written = summary_file(Summary(**SUMMARY | {"epsilon": inf}))
    assert strict(written)["epsilon"] == "Infinity"
    assert strict(b"".join(clients_file([ClientRecord(**CLIENT | {"epsilon": inf})])))[0]["epsilon"] == "Infinity"
    (tmp_path / "summary.json").write_bytes(written.replace(b'"Infinity"', literal.encode()))
    found = read_summary(tmp_path)
    assert found is not None
    assert found["epsilon"] == inf


def test_no_file_there_is_no_round_and_no_summary(tmp_path):
    assert list(read_rounds(tmp_path)) == []
    assert (read_summary(tmp_path), read_clients(tmp_path)) == (None, None)


def test_keys_of_later_versions_are_not_looked_at(tmp_path):
    assert read(tmp_path, json.dumps(json.loads(round_line(ROUND)) | {"later": [1]})) == [ROUND]


def test_whatever_writes_json_writes_no_number_that_json_has_not():
    packages = [Path(str(package.__file__)).parent for package in (hetfl_flwr, strategies, clients, simulations)]
    found = {
        f"{path}, line {node.lineno}": {ast.unparse(keyword) for keyword in node.keywords}
        for package in packages
        for path in package.rglob("*.py")
        if "json.dump" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "json.dump")
    }
    assert len(found) > 9
    assert [place for place, keywords in found.items() if "allow_nan=False" not in keywords] == []


# --- damaged -------------------------------------------------------------------------------------

LITERALS = ["NaN", "Infinity", "1e400", "-1e400", "9" * 5000, "9" * 4000]
"""Numbers that no run reaches."""


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        *(("round", value, "") for value in (-1, "3", True)),
        *(("seconds", value, "") for value in (-0.1, None)),
        *(("accuracy", value, "") for value in (1.01, "0.5")),
        ("fwt", -1e-9, ""),
        ("wire_up", 2**53 + 1, ""),
        *(("clients", value, "") for value in ({"-1": {}}, {"٣": {}}, {"01": {}}, [])),
        *(("clients", {"0": {"loss": value}}, ".0.loss") for value in ("x", True)),
        ("clients", {"0": {"\x1b[31m\n": None}}, r".0.\x1b[31m "),
        ("failures", [{"partition": 0, "stage": "train", "reason": "r"}], ".0.node"),
        ("failures", [{"partition": -2, "stage": "", "reason": "", "node": 0}], ".0.partition"),
    ],
    ids=str,
)
def test_a_line_with_a_value_of_another_kind_or_beyond_its_range_is_left_out_and_named(
    tmp_path, capsys, key, value, place
):
    damaged = json.dumps(json.loads(round_line(ROUND)) | {key: value})
    assert read(tmp_path, damaged, round_line(ROUND)) == [ROUND]
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"hetfl: {tmp_path / 'rounds.jsonl'}, line 1 is damaged and left out: {key}{place}")
    assert said.isprintable()


@pytest.mark.parametrize("literal", LITERALS, ids=[each[:8] for each in LITERALS])
@pytest.mark.parametrize("key", ["round", "seconds", "accuracy", "bytes_up", "clock", "loss"])
def test_numbers_that_no_run_reaches_are_left_out_and_named(tmp_path, capsys, key, literal):
    text = json.dumps(json.loads(round_line(ROUND)) | {"clients": {"0": {"loss": 2.0}}})
    value = {"loss": 2.0, **json.loads(round_line(ROUND))}[key]
    damaged = text.replace(f'"{key}": {json.dumps(value)}', f'"{key}": {literal}')
    assert damaged != text
    assert read(tmp_path, damaged) == []
    assert "line 1 " in capsys.readouterr().err


NOTHING = ["[" * 100_000, '{"a":' * 100_000, "", "[]", "null", b"\xff\xfe\x00", '{"seconds": 1}', round_line(ROUND)]


@pytest.mark.parametrize("line", NOTHING, ids=range(len(NOTHING)))
def test_lines_that_are_no_round_or_the_same_once_more_are_left_out_and_named(tmp_path, capsys, line):
    assert read(tmp_path, round_line(ROUND), line, line) == [ROUND]
    assert ", line 2 (and 1 more) is damaged and left out: " in capsys.readouterr().err


def test_a_last_line_that_was_cut_is_left_out_without_a_word(tmp_path, capsys):
    whole = round_line(ROUND)
    for content in (whole, whole + b"\n" + whole[:-1]):
        (tmp_path / "rounds.jsonl").write_bytes(content)
        assert read_rounds(tmp_path) == [ROUND]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "whole", "key"),
    [("summary.json", SUMMARY, "versions"), ("clients.json", CLIENT, "partition")],
)
def test_a_summary_or_client_that_lacks_a_key_is_refused_by_it(refusal, tmp_path, name, whole, key):
    lacking = {other: value for other, value in whole.items() if other != key}
    (tmp_path / name).write_text(json.dumps([lacking] if name == "clients.json" else lacking))
    line = refusal(RunFolderError, read_clients if name == "clients.json" else read_summary, tmp_path)
    assert line.startswith(f"{tmp_path / name}: {'0.' * (name == 'clients.json')}{key}: ")


READERS = {"rounds.jsonl": read_rounds, "summary.json": read_summary, "clients.json": read_clients}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused_and_not_waited_for(refusal, tmp_path, name, make):
    make(tmp_path / name)
    assert str(tmp_path / name) in refusal(RunFolderError, READERS[name], tmp_path)


# --- files of a run ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rounds.jsonl", "summary.json", "checkpoint/a.png", "uploads/x/y"])
@pytest.mark.parametrize("held", [["rounds.jsonl"], ["config.toml", "summary.json"], ["checkpoint"]])
def test_nothing_else_is_written_over_files_of_a_run(refusal, tmp_path, name, held):
    """Also by another name of the folder. In a folder of a user's own, such names are free."""
    run, free = tmp_path / "run", tmp_path / "free"
    for folder, names in ((run, held), (free, ["config.toml"])):
        folder.mkdir()
        for each in names:
            (folder / each).touch()
    (tmp_path / "link").symlink_to(run)
    for place in (run, tmp_path / "link"):
        assert str(run) in refusal(RunFolderError, check_no_run_file, place / name).replace("/link", "/run")
    for path in (run / "table.png", free / name):
        assert check_no_run_file(path) == path
