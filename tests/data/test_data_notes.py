"""What is said of a data set: once a run, in its folder, on a node in its own log, and of unlike nodes."""

import pytest
from fixtures.data.columns import write_csv
from fixtures.federations.members import member, roster
from typer.testing import CliRunner

from hetfl_flwr.errors import FederationError
from hetfl_flwr.node.registration import _notes
from hetfl_flwr.server.member import Member
from hetfl_flwr.wire.messages import MEMBER
from hetfl_flwr.wire.naming import Naming
from simulations.cli.command import app

HOSPITAL = "patient,age,seen,ward,label\n" + "".join(
    f"P{row},{'?!' if row == 5 else row % 60},2024-{row % 12 + 1:02d}-0{row % 9 + 1},{'ab'[row % 3 % 2]},{row % 2}\n"
    for row in range(120)
)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_line_is_said_once_a_run_and_kept_in_its_folder(tmp_path, workers):
    folder = write_csv(tmp_path / "data", train=HOSPITAL)
    out = tmp_path / "out"
    arguments = ["--dataset", folder, "--clients", "3", "--rounds", "1", "--workers", str(workers), "--out", str(out)]
    keys = [part for key in ("label-column=label", "models=mlp") for part in ("--set", key)]
    done = CliRunner().invoke(app, ["run", "fedavg", *arguments, *keys])
    assert done.exit_code == 0, done.output
    lines = (out / "notes.txt").read_text().splitlines()
    assert [line.split("'")[1] for line in lines] == [*[str(folder)] * 5, "patient", "age", "seen"]
    assert [done.stderr.count(f"hetfl: {line}\n") for line in lines] == [1] * 8


@pytest.mark.slow
def test_a_sweep_says_each_line_once(tmp_path, capfd):
    folder = write_csv(tmp_path / "data", train=HOSPITAL)
    keys = [part for key in ("label-column=label", "models=mlp") for part in ("--set", key)]
    arguments = ["--dataset", folder, "--clients", "2", "--rounds", "1", "--sweep", "seed=0:2"]
    done = CliRunner().invoke(app, ["run", "local", *arguments, "--out", str(tmp_path / "out"), *keys])
    assert done.exit_code == 0, done.output
    assert (done.stderr + capfd.readouterr().err).count("column 'patient'") == 1


def test_on_a_node_they_stay_in_its_own_log(tmp_path, make_config, make_node, caplog):
    folder = write_csv(tmp_path / "data", train=HOSPITAL)
    node = make_node(make_config(algorithm="fedavg", dataset=folder, label_column="label", models="mlp"))
    assert _notes(node, share=False) == ()
    assert "patient" in caplog.text
    assert len(_notes(node, share=True)) == 8


class TestUnlikeNodes:
    def members(self, *names, share):
        namings = [Naming.of(own, share=share) for own in names]
        return [
            member(number, shape=(len(own),), input_digests=naming.digests, input_names=naming.shown)
            for number, (own, naming) in enumerate(zip(names, namings, strict=True))
        ]

    def refused(self, members, refusal):
        some = roster(0)
        for one in members:
            some.add(one)
        return refusal(FederationError, lambda: some.shape)

    def test_columns_that_one_lacks_are_named_where_names_are_shown(self, refusal):
        members = self.members(("age", "patient", "bmi"), ("age", "bmi"), share=True)
        assert "client 0 alone has 'patient'" in self.refused(members, refusal)

    def test_else_by_their_numbers(self, refusal):
        members = self.members(("age", "patient", "bmi"), ("age", "size"), share=False)
        line = self.refused(members, refusal)
        assert ("client 0 alone has columns 1, 2" in line, "client 1 alone has columns 1 " in line) == (True, True)
        assert not any(name in line for name in ("patient", "bmi", "size"))


def test_what_a_client_says_of_its_data_is_bounded():
    record = member(0).to_record()
    assert record["notes"] == []
    for bad in (["x" * 601], ["\x1b[31m"], ["x"] * 201):
        reply = type("Reply", (), {})()
        reply.metadata = type("Metadata", (), {"src_node_id": 1})
        reply.content = type("Content", (), {"config_records": {MEMBER: {**record, "notes": bad}}})
        with pytest.raises(FederationError, match="notes"):
            Member.from_reply(reply)
