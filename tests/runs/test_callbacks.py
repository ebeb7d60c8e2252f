"""Callbacks: told of the begin, of every round and of the end; one that raises takes nothing with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from hetfl_flwr import ConfigError, RoundCallback, RunConfig, RunInfo, run
from hetfl_flwr.errors import TooFewClients
from hetfl_flwr.runs.callbacks import added, notifying
from hetfl_flwr.runs.checkpoint import Checkpoint, checkpoints
from hetfl_flwr.runs.record import Round, Summary
from hetfl_flwr.server.exchange import SampleLimits
from simulations.testing.contract import entries

SMALL = {"models": "mlp", "clients": 2, "rounds": 3, "local_batches": 1, "progress": False}


class Seen:
    """A callback that derives from nothing."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, run: RunInfo) -> None:
        self.told.append((run.after, [entry.round for entry in run.rounds]))

    def round(self, entry: Round) -> None:
        self.told.append((entry.round, entry.accuracy))

    def end(self, summary: Summary, error: BaseException | None) -> None:
        self.told.append((summary["accuracy"], error))


class Written(RoundCallback):
    """Looks at what is in the run folder when a round is told."""

    def begin(self, run: RunInfo) -> None:
        assert (run.dataset, run.engine, run.config.clients) == ("digits", "local", 2)
        self.folder, self.lines, self.ended = run.folder, list[int](), False

    def round(self, entry: Round) -> None:
        self.lines.append(len((self.folder / "rounds.jsonl").read_text().splitlines()))

    def end(self, summary: Summary, error: BaseException | None) -> None:
        assert json.loads((self.folder / "summary.json").read_text()) == summary
        self.ended = True


class Broken(RoundCallback):
    """Changes all that it is given, and raises where it is to."""

    def __init__(self, where: str = "round", error: BaseException | None = None) -> None:
        self.where, self.error, self.told = where, error or RuntimeError("no\nconnection"), list[str]()

    def begin(self, run: RunInfo) -> None:
        self._raises("begin")

    def round(self, entry: Round) -> None:
        entry.clients.clear()
        entry.accuracy = 1.0
        self._raises("round")

    def end(self, summary: Summary, error: BaseException | None) -> None:
        summary.clear()  # type: ignore[attr-defined]
        self._raises("end")

    def _raises(self, where: str) -> None:
        self.told.append(where)
        if where == self.where:
            raise self.error


def accuracies(folder: Path) -> list[tuple[int, float]]:
    lines = entries(folder)
    return [(line["round"], line["accuracy"]) for line in lines]


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        *(
            (where, RuntimeError("no\nconnection"), "RuntimeError: no connection")
            for where in ("begin", "round", "end")
        ),
        ("round", SystemExit("bye"), "SystemExit: bye"),
        ("round", ValueError(), "ValueError"),
    ],
)
def test_a_callback_that_raises_is_named_and_takes_nothing_with_it(tmp_path, capsys, where, error, said):
    """It is not called again; the others see every round, when the run folder has it, as in a run without it."""
    expected = run("fedhe", out=tmp_path / "without", **SMALL)
    capsys.readouterr()
    broken, seen, written = Broken(where, error), Seen(), Written()
    result = run("fedhe", callbacks=[broken, seen, written], out=tmp_path / "with", **SMALL)
    [line] = capsys.readouterr().err.splitlines()
    assert "callback Broken" in line
    assert f"in this run: {said}" in line
    assert broken.told == {"begin": ["begin"], "round": ["begin", "round"]}.get(
        where, ["begin", "round", "round", "round", "round", "end"]
    )
    assert seen.told == [(None, []), *accuracies(expected.folder), (expected.summary["accuracy"], None)]
    assert (written.lines, written.ended) == ([1, 2, 3, 4], True)
    assert _timeless(result.folder) == _timeless(expected.folder)
    for name in ("clients.json", "knowledge.safetensors"):
        assert (result.folder / name).read_bytes() == (expected.folder / name).read_bytes()


def _timeless(folder: Path) -> list[dict[str, Any]]:
    return [line | {"seconds": 0} for line in entries(folder)]


def test_a_resumed_run_says_after_which_round_it_goes_on_and_what_it_has(tmp_path, caplog):
    run("fedhe", out=tmp_path / "run", **SMALL)
    seen = Seen()
    result = run("fedhe", callbacks=[seen], out=tmp_path / "run", resume=True, rounds=5, progress=False)
    begin, *rounds, _ = seen.told
    assert begin == (3, [0, 1, 2, 3])
    assert rounds == accuracies(result.folder)[4:]
    assert [number for number, _ in rounds] == [4, 5]


def test_how_a_run_ended_is_told(make_config, run_federation, monkeypatch):
    """A round of too few replies is written down, and nobody else is told: the run has not got there."""
    config = make_config(clients=2, checkpoint_every=1, callbacks="fixtures.callbacks:Lines")
    folder = run_federation(config)
    monkeypatch.setattr("strategies.fedhe.FedHe.sample_limits", lambda self, member: SampleLimits(0, 0))
    with pytest.raises(TooFewClients) as ended:
        run_federation(config.with_values({"resume": True, "rounds": 4}))
    told = [f"{number} {accuracy}" for number, accuracy in accuracies(folder)[:3]]
    lines = (folder / "lines.txt").read_text().splitlines()
    assert lines == ["begin None", *told, "end None", "begin 2", f"end {ended.value}"]
    assert [number for number, _ in accuracies(folder)] == [0, 1, 2, 3]
    assert Checkpoint.read(folder).round == 2


def test_an_end_is_told_to_all_and_results_come_first():
    told_of: list[Any] = []

    class One(RoundCallback):
        def __init__(self, name: str) -> None:
            self.name = name

        def round(self, entry: Round) -> None:
            told_of.append(self.name)

        def end(self, summary: Summary, error: BaseException | None) -> None:
            told_of.append((self.name, type(error).__name__))
            if self.name == "results":
                raise OSError("the disk is full")

    def play() -> None:
        run_info = RunInfo(RunConfig(), Path(), "local", "digits")
        with notifying([One("results"), One("other")], run_info, dict) as tell:  # type: ignore[arg-type]
            tell(Round(0, 0.0))

    with pytest.raises(OSError, match="the disk is full"):
        play()
    assert told_of == ["results", "other", ("results", "NoneType"), ("other", "OSError")]


def test_checkpoints_are_written_before_users_callbacks_are_told(make_config, run_federation):
    """Whatever a callback does to this process, the round is not lost."""
    newest: list[int] = []

    class Dies(RoundCallback):
        def round(self, entry: Round) -> None:
            newest.append(int(checkpoints(Path(config.output_dir))[0].name.removeprefix("round-")))
            if entry.round == 1:
                raise KeyboardInterrupt

    config = make_config(checkpoint_every=1)
    with added([Dies()]), pytest.raises(KeyboardInterrupt):
        run_federation(config)
    assert newest == [0, 1]
    resumed = run_federation(config.with_values({"resume": True}))
    assert [number for number, _ in accuracies(resumed)] == [0, 1, 2]


# --- names ---------------------------------------------------------------------------------------


def test_the_run_config_names_callbacks(tmp_path):
    """From Python as well, beside objects; the names are part of the run folder, and a resumed run may change them."""
    seen, name = Seen(), "fixtures.callbacks:Lines"
    result = run("fedhe", callbacks=[name, seen], out=tmp_path / "run", **SMALL)
    told = [f"{number} {accuracy}" for number, accuracy in accuracies(result.folder)]
    assert (result.folder / "lines.txt").read_text().splitlines() == ["begin None", *told, "end None"]
    assert result.config["callbacks"] == name
    assert len(seen.told) == 6
    again = run("fedhe", out=result.folder, resume=True, rounds=4, settings={"callbacks": ""}, progress=False)
    assert len((result.folder / "lines.txt").read_text().splitlines()) == 6
    assert again.summary["rounds"] == 4


class Half:
    def begin(self, run: RunInfo) -> None:
        pass


class Needs(RoundCallback):
    def __init__(self, what: str) -> None:
        pass


class LeavesAtOnce(RoundCallback):
    def __init__(self) -> None:
        raise SystemExit(0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{}", "package.module:Class"),
        ("{}:", "package.module:Class"),
        ("{}:Seen,", "package.module:Class"),
        ("no_such_module_here:Lines", "ModuleNotFoundError"),
        ("broken_callbacks:Lines", "no licence"),
        ("{}:Line", "AttributeError"),
        ("{}:json", "begin, round, end"),
        ("{}:Half", "round, end"),
        ("{}:Needs", "TypeError"),
        ("{}:LeavesAtOnce", "SystemExit"),
    ],
)
def test_a_name_that_leads_to_no_callback_is_one_line_before_anything_is_computed(
    tmp_path, monkeypatch, refusal, name, said, make_config, run_federation
):
    (tmp_path / "broken_callbacks.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(str(tmp_path))
    name = name.format(__name__)
    line = refusal(ConfigError, lambda: run_federation(make_config(callbacks=name)))
    assert line.startswith(f"callbacks = '{name}': ")
    assert said in line
    assert not (tmp_path / "run").exists()
