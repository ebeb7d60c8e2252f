"""What one hostile client costs the others: ``python -m simulations.benchmarks.attacks fedavg --out DIR``.

Federations on the bundled digits, with default settings: 50 rounds of three mini-batches, iid rows, heterogeneous
models where the method may have them. One client sends one of `ATTACKS` in place of what it has learnt. Floating-point
arrays are forged; of those that are sent both ways, such as weights, the change; of probabilities a flipped sign is
``(1 - p) / (C - 1)``. Accuracy is the mean over the honest clients, each on its own test set, after the last round.

Each attack is run with the guard alone, which is the default, and with ``--robust`` (``none`` for methods that average
nothing), beside the same federations without it. A run whose record is in ``DIR/attacks.jsonl`` is not repeated.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from numpy.typing import NDArray

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

HOSTILE, ROUNDS, RUN = 3, 50, 2**62

PROBABILITIES = {"averages", "posteriors", "softmax"}
"""Arrays whose rows are distributions over classes."""

Values = NDArray[Any]
Attack = Callable[[Values, Values], Values]
"""From an array that a client has learnt, and what it was sent in its place (zeros: nothing), to what it sends."""


def times(factor: float) -> Attack:
    """Multiply what was learnt; of what was sent down, too, the change."""
    return lambda array, sent: sent + np.clip((array - sent) * np.float32(factor), -LEARNT_LIMIT, LEARNT_LIMIT)


def slight(array: Values, sent: Values) -> Values:
    """Move what was sent down against what was learnt, by 4.5 % of its size."""
    change = array - sent
    return sent - change * np.float32(0.045 * root_mean_square(sent) / max(root_mean_square(change), 1e-30))


ATTACKS: Mapping[str, Attack | None] = {
    **{"none": None, "times 10": times(10.0), "times 1e6": times(1e6), "sign-flipped": times(-1.0)},
    **{"slight": slight, "within the factor": times(-4.5)},
}
"""What the hostile client sends in each round; the last is the largest that the guard's factor of 5 hardly finds."""


class HostileGrid(LocalEngine):
    """The local engine with one client whose training replies are forged: all are sent messages."""

    exchange = None  # type: ignore[assignment]
    attack = ""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Remember what clients are sent."""
        pushed = list(messages)
        ids = super().push_messages(pushed)
        self._sent = {**getattr(self, "_sent", {}), **dict(zip(ids, pushed, strict=True))}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Forge the hostile client's replies."""
        replies = super().pull_messages(message_ids)
        for reply in replies:
            sent = self._sent.pop(reply.metadata.reply_to_message_id)
            if sent.metadata.dst_node_id == FIRST_NODE + HOSTILE and sent.metadata.message_type == MessageType.TRAIN:
                self._forge(reply, from_record(sent.content.array_records.get(ARRAYS) or ArrayRecord()))
        return replies

    def _forge(self, reply: Message, down: Mapping[str, Values]) -> None:
        attack = ATTACKS[self.attack]
        if attack is None or not reply.has_content():
            return
        learnt = dict(from_record(reply.content.array_records[ARRAYS]))
        for name, array in learnt.items():
            before = down.get(name, array)
            same = name in down and (before.shape, before.dtype) == (array.shape, array.dtype)
            if name in PROBABILITIES and self.attack == "sign-flipped":
                learnt[name] = (1 - array) / (array.shape[-1] - 1)
            elif array.dtype.kind == "f" and array.ndim:
                learnt[name] = attack(array, before if same else np.zeros_like(array)).astype(array.dtype)
        reply.content[ARRAYS] = ArrayRecord({name: Array(array) for name, array in learnt.items()})


def measured(method: str, attack: str, robust: str, seed: int, clients: int) -> dict[str, Any]:
    """Run one federation; return its honest clients' accuracy, and how often uploads were left out."""
    with TemporaryDirectory() as folder, process_as_it_was(log=False, bars=False):
        keys: dict[str, Value] = {
            "algorithm": method,
            "clients": clients,
            "seed": seed,
            "robust": robust,
            "rounds": ROUNDS,
        }
        keys |= {"evaluate-every": ROUNDS, "checkpoint-every": 0, "output-dir": f"{folder}/run"}
        config = resolved(RunConfig.from_flat(keys), "local")
        with HostileGrid(config, RUN + seed) as grid:
            grid.attack = attack
            server_app(grid, Context(RUN + seed, 1, {}, RecordDict(), config.to_flat()))
        rounds = [json.loads(line) for line in (Path(config.output_dir) / "rounds.jsonl").read_text().splitlines()]
    left_out = [failure["partition"] for entry in rounds for failure in entry["failures"]]
    honest = [own["accuracy"] for client, own in rounds[-1]["clients"].items() if int(client) != HOSTILE]
    return {
        **{"method": method, "attack": attack, "robust": robust, "seed": seed, "accuracy": fmean(honest)},
        **{"hostile left out": left_out.count(HOSTILE), "honest left out": len(left_out) - left_out.count(HOSTILE)},
    }


def main(
    methods: Annotated[list[str], typer.Argument(help="Methods that clients send something in.")],
    out: Annotated[Path, typer.Option(help="Folder of the records.")],
    attack: Annotated[list[str] | None, typer.Option(help="One of them, once for each; all by default.")] = None,
    robust: Annotated[str, typer.Option(help="Averages beside the plain ones, as the config key.")] = "median",
    seeds: Annotated[int, typer.Option(min=2, help="Seeds 0 to N - 1.")] = 3,
    clients: Annotated[int, typer.Option(min=HOSTILE + 1, help="How many, one of them hostile.")] = 10,
) -> None:
    """Run what has not been run yet, and print mean and standard deviation of the accuracy in %."""
    path = out / "attacks.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    known = [json.loads(line) for line in path.open()] if path.exists() else []
    done = {tuple(one[key] for key in ("method", "attack", "robust", "seed")): one for one in known}
    chosen = attack or list(ATTACKS)
    print(f"| | {' | '.join(chosen)} |\n| --- {'| --- ' * len(chosen)}|")
    for method, how in product(methods, dict.fromkeys(("none", robust))):
        cells = []
        for name in chosen:
            for seed in range(seeds):
                if (method, name, how, seed) not in done:
                    done[method, name, how, seed] = measured(method, name, how, seed, clients)
                    with path.open("a") as file:
                        file.write(json.dumps(done[method, name, how, seed], allow_nan=False) + "\n")
            found = [100 * done[method, name, how, seed]["accuracy"] for seed in range(seeds)]
            cells.append(f"{fmean(found):.1f} ± {stdev(found):.1f}")
        print(f"| `{method}`{'' if how == 'none' else ', ' + how} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
