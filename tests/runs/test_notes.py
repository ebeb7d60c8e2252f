"""The notes of clients: said once, and by whom where the clients are strangers."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures.federations.members import member

from hetfl_flwr.config import RunConfig
from hetfl_flwr.runs.callbacks import RunInfo
from hetfl_flwr.runs.progress import Notes
from hetfl_flwr.server.member import MAX_NOTES
from hetfl_flwr.server.roster import Roster

AFTER = SimpleNamespace()
"""Stands for a round, of which nothing is looked at."""


def written(folder: Path, members: list, engine: str, later: tuple = ()) -> list[str]:
    roster = Roster(members)
    notes = Notes(roster)
    notes.begin(RunInfo(RunConfig(), folder, engine, "digits", None, ()))
    notes.round(AFTER)
    for each in later:
        for one in each:
            roster.add(one)
        notes.round(AFTER)
    return (folder / "notes.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("engine", "lines"),
    [
        ("local", ["column id is left out", "client 0: its data are bad"]),
        ("simulation", ["column id is left out", "client 0: its data are bad"]),
        ("deployment", ['client 0, 1 says: "column id is left out"', 'client 2 says: "client 0: its data are bad"']),
    ],
)
def test_a_line_of_a_stranger_begins_with_who_says_it(tmp_path, engine, lines):
    said = ("column id is left out",), ("column id is left out",), ("client 0: its data are bad",)
    assert written(tmp_path, [member(k, notes=notes) for k, notes in enumerate(said)], engine) == lines


def test_who_registers_again_and_again_is_heard_only_so_often(tmp_path):
    again = [[member(0, notes=tuple(f"{time} {line}" for line in range(100)))] for time in range(10)]
    assert len(written(tmp_path, again[0].copy(), "deployment", tuple(again))) == MAX_NOTES
