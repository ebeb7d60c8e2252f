"""What one hostile client costs the others: ``python -m simulations.benchmarks.attacks --out DIR``.

Every algorithm that is sent anything, on the bundled digits, with default settings (50 rounds of three mini-batches,
iid rows, heterogeneous models where it may), over three seeds. The accuracy is the mean over the honest clients, after
the last round, each on its own test set. One client sends, in place of what it has learnt,

- *at the limit*: one of five, once, in round 25, the largest number that each array may hold, everywhere;
- *scaled by 10*, *by 1e6*: one of ten, in each round, its arrays times that;
- *change x10*: one of ten, in each round, of weights their change times 10;
- *sign-flipped*: one of ten, in each round, its arrays times -1; of weights, which are sent both ways, their change;
- *slight*: one of ten, in each round, of weights what they were sent, moved against its own learning by 4.5 % of their
  size. *within the factor*: their change times -4.5, the largest that the guard's factor of 5 hardly ever finds.

Scaled are amounts: floating-point arrays that are no probabilities. Probabilities are flipped to
``(1 - p) / (C - 1)``. Attacks on changes are for methods that send weights; other cells have a dash. Beside each attack
stands the same federation without it: with the default, which is the guard alone, or with ``robust = "median"``. A run
whose record is in ``DIR/attacks.jsonl`` is not repeated.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from numpy.typing import NDArray

from hetfl_flwr.common.versions import environment
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.runs.settings import resolved
from hetfl_flwr.server.guard import root_mean_square
from hetfl_flwr.server_app import app as server_app
from hetfl_flwr.wire.codec import from_record
from hetfl_flwr.wire.messages import ARRAYS
from hetfl_flwr.wire.spec import LEARNT_LIMIT
from simulations.engine.clients import FIRST_NODE
from simulations.engine.grid import LocalEngine
from simulations.engine.run import process_as_it_was

HOSTILE, SEEDS, ROUNDS, PART = 3, 3, 50, 0.045

_NAMES = (
    *("fedhe", "fd", "fedproto", "fedmd", "dsfl", "fedh2l", "chfl", "fedhenn", "fedgh", "fedtgp", "lgfedavg", "fml"),
    *("fedavg", "fedprox", "fedrep", "fedkd", "heterofl", "feddf"),
)

ALGORITHMS: Mapping[str, Mapping[str, Value]] = {
    **{name: {"algorithm": name} for name in _NAMES},
    "fd, asynchronous": {"algorithm": "fd", "fd.mode": "async"},
    "fedhenn, homogeneous": {"algorithm": "fedhenn", "fedhenn.mode": "homogeneous"},
}
"""The rows: config keys of each."""

PROBABILITIES = {"averages", "posteriors", "softmax"}
"""Arrays whose rows are distributions over classes."""

WEIGHTS = {"fedhenn, homogeneous", "lgfedavg", "fml", "fedavg", "fedprox", "fedrep", "heterofl", "feddf"}
"""Rows whose clients send back what became of the weights that they were sent."""

Values = NDArray[Any]
Attack = Callable[[Values, Values | None], Values]
"""From an array that a client has learnt, and the one of its name and shape that it was sent, to what it sends."""


def times(factor: float, *, change: bool = False) -> Attack:
    """Multiply what was learnt; with `change`, of what was sent down, too, what has changed of it."""

    def attack(array: Values, sent: Values | None) -> Values:
        start = sent if change and sent is not None else np.zeros_like(array)
        moved = np.clip((array - start) * np.float32(factor), -LEARNT_LIMIT, LEARNT_LIMIT)
        forged: Values = start + moved.astype(array.dtype)
        return forged

    return attack


def at_the_limit(array: Values, sent: Values | None) -> Values:
    """Send the largest number allowed."""
    return np.full_like(array, LEARNT_LIMIT)


def slight(array: Values, sent: Values | None) -> Values:
    """Send what was sent, moved against what was learnt by `PART` of its size."""
    if sent is None or not (change := array - sent).any():
        return array
    return sent - change * np.float32(PART * root_mean_square(sent) / root_mean_square(change))


FLIPPED, WITHIN = times(-1.0, change=True), times(-4.5, change=True)


class Column(NamedTuple):
    """A column: how many clients, the attack of one of them, if averages are robust, and if it is on weights alone."""

    clients: int
    attack: Attack | None = None
    robust: bool = False
    weights: bool = False

    def stands_for(self, row: str) -> bool:
        """Say whether it has a run of a row."""
        return (row in WEIGHTS or not self.weights) and not (row == "fedh2l" and self.robust)


COLUMNS: Mapping[str, Column] = {
    "5 clients": Column(5),
    "at the limit": Column(5, at_the_limit),
    "10 clients": Column(10),
    "scaled by 10": Column(10, times(10.0)),
    "scaled by 1e6": Column(10, times(1e6)),
    "change x10": Column(10, times(10.0, change=True), weights=True),
    "sign-flipped": Column(10, FLIPPED),
    "10 clients, robust": Column(10, robust=True),
    "sign-flipped, robust": Column(10, FLIPPED, robust=True),
    "slight": Column(10, slight, weights=True),
    "slight, robust": Column(10, slight, robust=True, weights=True),
    "within the factor": Column(10, WITHIN, weights=True),
    "within the factor, robust": Column(10, WITHIN, robust=True, weights=True),
}
"""The columns, each attack behind the federation without it."""


class HostileGrid(LocalEngine):
    """The local engine with one client whose training replies are forged: all are sent messages."""

    exchange = None  # type: ignore[assignment]

    def __init__(self, config: RunConfig, run: int, attack: Attack | None) -> None:
        super().__init__(config, run)
        self._attack, self._sent, self._replied = attack, dict[str, Message](), 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Remember what clients are sent."""
        pushed = list(messages)
        ids = super().push_messages(pushed)
        self._sent |= dict(zip(ids, pushed, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Forge the hostile client's replies."""
        replies = super().pull_messages(message_ids)
        for reply in replies:
            sent = self._sent.pop(reply.metadata.reply_to_message_id)
            hostile = sent.metadata.dst_node_id == FIRST_NODE + HOSTILE
            if hostile and sent.metadata.message_type == MessageType.TRAIN and reply.has_content():
                self._replied += 1
                if self._attack and (self._attack is not at_the_limit or self._replied == ROUNDS // 2):
                    _forge(reply, sent, self._attack)
        return replies


def _forge(reply: Message, sent: Message, attack: Attack) -> None:
    learnt = from_record(reply.content.array_records[ARRAYS])
    down = from_record(sent.content.array_records.get(ARRAYS) or ArrayRecord())
    for name, array in learnt.items():
        before = down.get(name)
        same = before is not None and (before.shape, before.dtype) == (array.shape, array.dtype)
        if name in PROBABILITIES and attack is FLIPPED:
            learnt[name] = (1 - array) / (array.shape[-1] - 1)
        elif array.dtype.kind == "f" and array.ndim:
            learnt[name] = attack(array, before if same else None)
    reply.content[ARRAYS] = ArrayRecord({name: Array(array) for name, array in learnt.items()})


def measured(keys: Mapping[str, Value], column: Column, seed: int, robust: str) -> dict[str, Any]:
    """Run one federation, and return its honest clients' accuracy and who was left out how often."""
    flat = {**keys, "clients": column.clients, "seed": seed, "evaluate-every": ROUNDS, "rounds": ROUNDS}
    if column.robust:
        flat["robust"] = robust
    with TemporaryDirectory() as folder, process_as_it_was(log=False, bars=False):
        flat |= {"output-dir": f"{folder}/run", "checkpoint-every": 0}
        config = resolved(RunConfig.from_flat(flat), "local")
        with HostileGrid(config, 2**62 + seed, column.attack) as grid:
            server_app(grid, Context(2**62 + seed, 1, {}, RecordDict(), config.to_flat()))
        rounds = [json.loads(line) for line in (Path(config.output_dir) / "rounds.jsonl").read_text().splitlines()]
    failures = [failure for entry in rounds for failure in entry["failures"]]
    honest = [scores["accuracy"] for client, scores in rounds[-1]["clients"].items() if int(client) != HOSTILE]
    return {
        "accuracy": fmean(honest),
        "set_aside": sum(failure["partition"] == HOSTILE for failure in failures),
        "honest_set_aside": sum(failure["partition"] != HOSTILE for failure in failures),
    }


def main(
    out: Annotated[Path, typer.Option(help="Folder of the records and the table.")],
    only: Annotated[list[str] | None, typer.Option(help="A row, once for each; all of them by default.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="A column, once for each; all by default.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds 0 to N - 1.")] = SEEDS,
    robust: Annotated[str, typer.Option(help="Of the robust columns; another one needs another folder.")] = "median",
) -> None:
    """Run what has not been run yet, and write the table."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "attacks.jsonl"
    records = [json.loads(line) for line in path.open()] if path.exists() else []
    done = {(one["row"], one["column"], one["seed"]) for one in records}
    for seed, row, name in product(range(seeds), only or ALGORITHMS, column or COLUMNS):
        if (row, name, seed) not in done and COLUMNS[name].stands_for(row):
            found = {"row": row, "column": name, "seed": seed, "versions": environment()}
            records.append(found | measured(ALGORITHMS[row], COLUMNS[name], seed, robust))
            with path.open("a") as file:
                file.write(json.dumps(records[-1], allow_nan=False) + "\n")
    text = "\n".join(table(records))
    (out / "attacks.md").write_text(text + "\n")
    print(text)


def table(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Write the table's lines: means and standard deviations in %, and the clients' uploads that were left out."""
    known = list(records)
    yield "| | " + " | ".join(COLUMNS) + " |"
    yield "| --- " * (len(COLUMNS) + 1) + "|"
    for row in ALGORITHMS:
        cells = []
        for name, column in COLUMNS.items():
            shown = [100 * one["accuracy"] for one in known if (one["row"], one["column"]) == (row, name)]
            spread = f" ± {stdev(shown):.1f}" if len(shown) > 2 else ""
            cells.append(f"{fmean(shown):.1f}{spread}" if shown else "" if column.stands_for(row) else "-")
        yield f"| `{row}` | " + " | ".join(cells) + " |"
    honest = sum(one["honest_set_aside"] for one in known)
    yield f"\nUploads of honest clients that were left out in these {len(known)} runs: {honest}."


if __name__ == "__main__":
    typer.run(main)
