"""The state of a run: its progress, results, clients and failures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from hetfl_flwr.runs.checkpoint import checkpoints
from hetfl_flwr.runs.lock import writer_of
from hetfl_flwr.runs.record import RESUME_FILE, figures_of, name_of, resume_command
from hetfl_flwr.text import printable
from simulations.reports.layout import NOTHING, byte_size, percent, table_of
from simulations.reports.runs import Run, known, load_run

MAX_REASONS = 5
"""Maximum number of failures and outliers shown: the newest ones."""

NAME_WIDTH, GAP = 16, 4
"""Width of a name or model in a terminal, and of the gap between two blocks of clients, in characters."""

Row = dict[str, Any]

RECENT = 20
"""Number of the last rounds whose duration is used to estimate the time left."""


@dataclass(frozen=True)
class RunState:
    """The state of a run; `writer` is the process that writes its folder, "" if none.

    With `failed`, only clients with failures are listed.
    """

    run: Run
    writer: str
    failed: bool = False

    @property
    def ended(self) -> bool:
        """Whether no process writes the run's folder: the run has ended or was stopped."""
        return not self.writer

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that is shown, as JSON; clients with failures first, then late ones, then the least accurate."""
        rounds, wanted = self.run.rounds, int(self.run.config["rounds"])
        done, reached = rounds[-1].round if rounds else 0, figures_of(rounds)
        recent = [one.seconds for one in rounds[-RECENT:] if one.round]
        pace = fmean(recent) if recent and not self.ended else None
        reasons = [
            {"round": one.round, "reason": noted.reason} for one in rounds for noted in (*one.failures, *one.outliers)
        ]
        return {
            "run": self.run.name,
            "state": "running" if self.writer else "ended" if done >= wanted else "stopped",
            "round": done,
            "rounds": wanted,
            "accuracy": reached["accuracy"],
            "bytes": reached["bytes_up"] + reached["bytes_down"],
            "failures": reached["failures"],
            "left_out": reached["left_out"],
            "seconds_a_round": pace,
            "seconds_left": None if pace is None else (wanted - done) * pace,
            "writer": self.writer or None,
            "resume": self._resume() if self.ended and done < wanted else None,
            "clients": [row for row in self._clients() if row["failures"] or not self.failed],
            "reasons": reasons[-MAX_REASONS:],
        }

    @property
    def line(self) -> str:
        """The state in one line."""
        facts = self.facts
        words = [f"{facts['run']}: round {facts['round']} of {facts['rounds']}"]
        words += [f"accuracy {percent(facts['accuracy'])} %"] if facts["accuracy"] is not None else []
        words += [f"{byte_size(facts['bytes'])} of payload"]
        words += [f"{facts['failures']} failure{'s' * (facts['failures'] != 1)}"] if facts["failures"] else []
        words += [f"{facts['left_out']} upload{'s' * (facts['left_out'] != 1)} left out"] if facts["left_out"] else []
        if facts["seconds_a_round"] is not None:
            words += [f"{facts['seconds_a_round']:.1f} s a round", f"about {facts['seconds_left']:.0f} s left"]
        words += [] if facts["state"] == "running" else [facts["state"]]
        return ", ".join(words) + (f"; {facts['resume']}" if facts["resume"] else "")

    def shown(self, console: Console) -> Group:
        """Return the line, the writer, a summary of all clients, the newest failures and outliers, and their rows.

        In a terminal, only as many rows as fit on the screen, side by side if it is wide, and the number of clients
        that are left out.
        """
        facts = self.facts
        above = [self.line, *([f"written by {self.writer}"] if self.writer else []), _summary(self._clients())]
        above += [self.run.damage] if self.run.damage else []
        above += [printable(f"round {one['round']}: {one['reason']}") for one in facts["reasons"]]
        texts, rows = [Text(one) for one in above], facts["clients"]
        if not rows:
            return Group(*texts, *([Text("no client has failed")] if self.failed else []))
        if not console.is_terminal:
            return Group(*texts, _client_table(rows))
        rows = [{**row, "name": _short(row["name"]), "model": _short(row["model"])} for row in rows]
        used = sum(len(console.render_lines(text, pad=False)) for text in texts)
        height = max(console.height - used - 4, 1)  # heading, rule, note and prompt
        blocks = max((console.width + GAP) // (console.measure(_client_table(rows)).maximum + GAP), 1)
        fitting, grid = rows[: height * blocks], Table.grid(padding=(0, GAP, 0, 0))
        grid.add_row(*(_client_table(fitting[first : first + height]) for first in range(0, len(fitting), height)))
        left = len(rows) - len(fitting)
        note = [Text(f"and {left} more: the same command with `--once | less` lists all")] if left else []
        return Group(*texts, grid, *note)

    def _resume(self) -> str:
        """Return how to resume a run that was stopped."""
        folder = self.run.folder.resolve()
        if not checkpoints(folder):
            return "it has no checkpoint to resume from; checkpoint-every sets how often a run writes one"
        file = (folder / RESUME_FILE).exists()
        engine = self.run.summary["engine"] if file else "local"
        command = resume_command(folder, engine, str(self.run.config["algorithm"]))
        named = "NAME is the SuperLink's in Flower's config.toml; " * (engine == "deployment")
        return "to run longer, raise rounds in the file; " * file + f"{named}to continue: {command}"

    def _clients(self) -> list[Row]:
        rows: dict[int, Row] = {}
        for client in self.run.clients:
            own = {"client": client["partition"], "name": name_of(client) or None, "model": client["model"] or None}
            rows[client["partition"]] = own | {"last_round": None, "accuracy": None, "failures": 0, "left_out": 0}
        for one in self.run.rounds:
            for failure in one.failures:
                if failure.client_id in rows:
                    rows[failure.client_id]["failures"] += 1
            for client_id in (*(outlier.client_id for outlier in one.outliers), *one.not_averaged):
                if client_id in rows:
                    rows[client_id]["left_out"] += 1
            for key, scores in one.clients.items():
                if row := rows.get(int(key)):
                    row |= {"last_round": one.round, "accuracy": scores.get("accuracy", row["accuracy"])}
        return sorted(rows.values(), key=_urgency)


def _urgency(row: Row) -> tuple[float, ...]:
    """Return a sort key: most failures first, then the oldest last round, then the lowest accuracy."""
    late = -1 if row["last_round"] is None else row["last_round"]
    return -row["failures"], late, 1 if row["accuracy"] is None else row["accuracy"], row["client"]


def _client_table(clients: Sequence[Row]) -> Table:
    """Return one row per client."""
    some_left_out = any(row["left_out"] for row in clients)
    columns: dict[str, Callable[[Row], str | None]] = {
        "client": lambda row: str(row["client"]),
        "name": lambda row: row["name"],
        "model": lambda row: row["model"] or NOTHING,
        "round": lambda row: NOTHING if row["last_round"] is None else str(row["last_round"]),
        "accuracy %": lambda row: percent(row["accuracy"]),
        "failures": lambda row: str(row["failures"]),
        "left out": lambda row: str(row["left_out"]) if some_left_out else None,
    }
    table = table_of("", columns, clients, words={"name", "model"}, notes=[])
    table.title = table.caption = None
    return table


def _short(text: str | None) -> str | None:
    """Return a text cut to `NAME_WIDTH` characters."""
    return text if text is None or len(text) <= NAME_WIDTH else f"{text[: NAME_WIDTH - 1]}\u2026"


def _summary(clients: Sequence[Row]) -> str:
    """Return one line that summarizes all clients."""
    accuracies = known(one["accuracy"] for one in clients)
    failing = sum(one["failures"] > 0 for one in clients)
    newest = max((one["last_round"] or 0 for one in clients), default=0)
    late = sum((one["last_round"] or 0) < newest for one in clients)
    words = [f"{len(clients)} clients", f"{failing} with failures", f"{late} missing from round {newest}"]
    if accuracies:
        low, middle, high = map(percent, (min(accuracies), median(accuracies), max(accuracies)))
        words += [f"accuracy {low} to {high} %, median {middle} %"]
    return ", ".join(words)


def standing(folder: Path, *, failed: bool = False) -> RunState:
    """Read the current state of a run folder; raises the same errors as `load_run`."""
    writer = writer_of(folder)  # before the rounds: a run that ends in between still counts as running
    return RunState(load_run(folder, on_damage=lambda line: None), writer, failed)
