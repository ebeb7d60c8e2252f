"""Faults by schedule: 200 runs in which clients crash, lag, vanish, come back, repeat themselves and send rubbish.

What each client is sent must be the average of what was accepted before, and what was accepted all that came well: the
averages are computed here once more, in plain loops and float64, from what the Grid has delivered. The knowledge of
clients is random, so an average over anything else would differ.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.tiers import mostly_exhaustive
from fixtures.wrong.faults import PUBLIC, Fate, Schedule, on_its_clock
from flwr.app import Message, MessageType

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import TooFewClients
from hetfl_flwr.server.exchange import BUSY
from hetfl_flwr.wire.codec import from_record
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, EXAMPLES, METRICS, ROUND, SHARE
from simulations.engine.clients import FIRST_NODE
from simulations.testing.contract import entries

LINEAR = "fixtures.models:linear"
CLIENTS, ROUNDS = 5, 11
"""Ten rounds, and one more in which clients are sent what came of the tenth."""

RUNS: list[dict[str, Any]] = [
    {"algorithm": "fedhe"},
    {"algorithm": "fedhe", "fedhe.mode": "async"},
    {"algorithm": "fml", "fml.meme": LINEAR},
    {"algorithm": "fedmd", "fedmd.public-samples": 6},
    {"algorithm": "chfl"},
    {"algorithm": "fedhenn", "fedhenn.rad-size": 6},
    {"algorithm": "fedh2l"},
    {"algorithm": "fedavg"},
]


@dataclass
class Upload:
    """What was accepted of one client, and of which public samples it speaks."""

    client_id: int
    arrays: dict[str, np.ndarray]
    samples: int
    asked: list[tuple[int, int]]


@dataclass
class Accepted:
    """What the server should know by now: uploads of clients that have trained on anything, and who has shared rows."""

    rounds: dict[int, list[Upload]] = field(default_factory=dict)
    sharing: set[int] = field(default_factory=set)

    @property
    def all(self) -> list[Upload]:
        return [upload for uploads in self.rounds.values() for upload in uploads]

    @property
    def last(self) -> list[Upload]:
        return sorted(self.rounds[max(self.rounds)], key=lambda upload: upload.client_id) if self.rounds else []

    def rows(self, numbers: np.ndarray) -> list[tuple[int, int]]:
        """Return whose rows these are, and which: numbers go through the rows of all who share, by client id."""
        return [(sorted(self.sharing)[number // PUBLIC], number % PUBLIC) for number in numbers.tolist()]


# --- what a client is to be sent -----------------------------------------------------------------

Sent = dict[str, np.ndarray]


def mean(arrays: list[np.ndarray]) -> np.ndarray:
    total = np.zeros(arrays[0].shape)
    for array in arrays:
        total = total + array.astype(np.float64)
    return total / len(arrays)


def class_averages(known: Accepted, sent: Sent, client_id: int) -> None:
    for label in range(3):
        rows = [upload.arrays["logits"][label] for upload in known.all if upload.arrays["counts"][label] > 0]
        assert sent["known"][label] == (len(rows) > 0)
        near(sent["logits"][label], mean(rows) if rows else np.zeros(3))


def mean_meme(known: Accepted, sent: Sent, client_id: int) -> None:
    for name in sent:
        near(sent[name], mean([upload.arrays[name] for upload in known.last]))


def mean_weights(known: Accepted, sent: Sent, client_id: int) -> None:
    for name in sent:
        near(sent[name], mean([upload.arrays[name] for upload in known.last for _ in range(upload.samples)]))


def summed_heads(known: Accepted, sent: Sent, client_id: int) -> None:
    assert sent["heads"] == len(known.last)
    for name in ("weight", "bias"):
        near(sent[name], mean([upload.arrays[name] for upload in known.last]) * len(known.last))


def consensus(known: Accepted, sent: Sent, client_id: int) -> None:
    assert known.rows(sent["digested"]) == known.last[0].asked
    near(sent["consensus"], mean([upload.arrays["logits"] for upload in known.last]))


def mean_kernel(known: Accepted, sent: Sent, client_id: int) -> None:
    """Up to a factor, and centred."""
    assert known.rows(sent["aligned"]) == known.last[0].asked
    kernels = [upload.arrays["representations"].astype(np.float64) for upload in known.last]
    kernel = mean([rows @ rows.T for rows in kernels])
    kernel = kernel - kernel.mean(0) - kernel.mean(1, keepdims=True) + kernel.mean()
    found = sent["factor"].astype(np.float64) @ sent["factor"].T
    near(found / np.linalg.norm(found), kernel / np.linalg.norm(kernel))


def signals(known: Accepted, sent: Sent, client_id: int) -> None:
    peers = [upload for upload in known.last if upload.client_id != client_id]
    assert sent["teachers"].tolist() == [upload.client_id for upload in peers]
    for name, together in (("indices", "indices"), ("posteriors", "posteriors"), ("accuracy", "accuracies")):
        assert sent[together].tolist() == [row for one in peers for row in np.atleast_1d(one.arrays[name]).tolist()]


def near(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


REFERENCES: dict[str, Callable[[Accepted, Sent, int], None]] = {
    "fedhe": class_averages,
    "fml": mean_meme,
    "fedavg": mean_weights,
    "chfl": summed_heads,
    "fedmd": consensus,
    "fedhenn": mean_kernel,
    "fedh2l": signals,
}


# --- 200 runs ------------------------------------------------------------------------------------


def config_of(run: dict[str, Any], folder: Path) -> RunConfig:
    small = {"models": LINEAR, "clients": CLIENTS, "rounds": ROUNDS, "min-clients": 1, "round-timeout": 20.0}
    return RunConfig.from_flat({**small, "evaluate-every": 4, "output-dir": str(folder), **run})


def run_of(seed: int) -> dict[str, Any]:
    return RUNS[seed % len(RUNS)]


def number(message: Message) -> int:
    return int(message.content.config_records[CONFIG][ROUND])


def check_averages(grid: Schedule, check: Callable[[Accepted, Sent, int], None]) -> int:
    """Go through what was sent and what came, in order; return how many averages were checked."""
    known, asked, checked = Accepted(), {}, 0
    sent_as: dict[str, Message] = {}
    for event, message, fate in grid.log:
        client_id, kind = grid.client_of(message), message.metadata.message_type
        if event == "sent":
            sent_as[message.metadata.message_id] = message
        if event == "sent" and kind == MessageType.TRAIN:
            download = from_record(message.content.array_records[ARRAYS])
            if known.rounds:
                check(known, download, client_id)
                checked += 1
            asked[message.metadata.message_id] = known.rows(download.get("asked", np.zeros(0, int)))
        elif event == "came" and kind == SHARE and not fate.said:
            known.sharing.add(client_id)
        elif event == "came" and kind == MessageType.TRAIN and not fate.said:
            question = message.metadata.reply_to_message_id
            samples = int(message.content.metric_records[METRICS][EXAMPLES])
            arrays = from_record(message.content.array_records[ARRAYS])
            if samples:
                upload = Upload(client_id, arrays, samples, asked[question])
                known.rounds.setdefault(number(sent_as[question]), []).append(upload)
    return checked


def check_rounds(grid: Schedule, rounds: list[dict[str, Any]]) -> None:
    """In each round just those have trained whose upload came well, and each of the others is named with its fault."""
    trained: dict[int, dict[int, Fate]] = {}
    for event, message, fate in grid.log:
        if event == "sent" and message.metadata.message_type == MessageType.TRAIN:
            trained.setdefault(number(message), {})[grid.client_of(message)] = fate
    for entry in rounds[1:]:
        fates = trained.get(entry["round"], {})
        good = {client_id for client_id, fate in fates.items() if not fate.said}
        assert {int(client) for client, values in entry["clients"].items() if "train-loss" in values} == good
        failed = {
            failure["partition"]: failure["reason"] for failure in entry["failures"] if failure["stage"] == "train"
        }
        busy = {client_id for client_id, reason in failed.items() if reason.endswith(BUSY)}
        assert set(failed) - busy == set(fates) - good
        for client_id in set(fates) - good:
            assert any(part in failed[client_id] for part in fates[client_id].said.split("|"))
    for entry in rounds[1:]:
        left_out = [failure for failure in entry["failures"] if failure["stage"] in ("train", "client registration")]
        busy = {(failure["node"] - FIRST_NODE) % CLIENTS for failure in left_out if failure["reason"].endswith(BUSY)}
        assert not busy & grid.free[entry["round"]], "left out as busy, and has nothing to do"


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    mostly_exhaustive(range(200), lambda seed: seed < 40),
    ids=lambda seed: f"{run_of(seed)['algorithm']}-{seed}",
)
def test_whatever_goes_wrong_rounds_are_kept_and_averages_are_those_of_the_accepted(
    seed, tmp_path, run_federation, monkeypatch
):
    config = config_of(run_of(seed), tmp_path)
    grid = Schedule(config, CLIENTS, seed)
    on_its_clock(grid, monkeypatch)
    too_few = None
    try:
        run_federation(config, grid)
    except TooFewClients as error:
        too_few = error
    rounds = entries(tmp_path)
    assert [entry["round"] for entry in rounds] == list(range(len(rounds)))
    assert (len(rounds) == ROUNDS + 1) or too_few
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == len(rounds) - 1
    if config.options.get("fedhe.mode") != "async":
        check_rounds(grid, rounds)
    assert check_averages(grid, REFERENCES[config.algorithm]) or too_few
