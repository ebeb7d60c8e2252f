"""Asynchronous rounds: nobody waits for anybody. What is synchronous about rounds is tested with the contract."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from fixtures.federations import post
from fixtures.federations.grids import Meddled, Watched
from fixtures.folders.reached import clients_of, server_state, summary_of
from fixtures.folders.reached import reached as all_but_states
from fixtures.tiers import exhaustive
from fixtures.wrong.faults import GOOD, Fate, Scripted, on_its_clock
from flwr.app import Message, MessageType

from clients.fedhe import FedHeClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, Interrupted, TooFewClients
from hetfl_flwr.runs.checkpoint import Checkpoint
from hetfl_flwr.server.exchange import Outcome, Pending, Request
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.member import Sharing
from hetfl_flwr.server.rounds import MAX_AHEAD, AsyncRounds
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.spec import Arrays
from simulations.cli.running import run_one
from simulations.engine.clients import FIRST_NODE
from simulations.engine.exchange import LocalExchange
from simulations.engine.grid import LocalEngine
from simulations.engine.workers import Task
from simulations.testing.contract import entries
from strategies.fedhe import FedHe

ASYNC = {"algorithm": "fedhe", "models": "mlp", "fedhe.mode": "async"}


@pytest.fixture
def play(make_config, run_federation, tmp_path):
    """Run FedHe, asynchronously unless said otherwise, in a folder of a name."""

    def play(name: object = "run", *, workers: int = 1, **keys: Any) -> Path:
        return run_federation(make_config(**ASYNC | keys, output_dir=str(tmp_path / str(name))), workers=workers)

    return play


def uploads_of(folder: Path) -> list[int]:
    """Return how often each client has uploaded its 480 bytes."""
    return [client["bytes_up"] // 480 for client in clients_of(folder)]


class Recording(Watched):
    """Writes down what clients are asked for."""

    def __init__(self, config: RunConfig) -> None:
        self.log: list[tuple[int, Task]] = []
        super().__init__(config, lambda grid, task: self.log.append((task.node - FIRST_NODE, task)))

    def trained(self) -> list[int]:
        """Return who was asked to train, in order."""
        return [client_id for client_id, task in self.log if task.kind == MessageType.TRAIN]


class OneThenAll(Meddled):
    """Delivers one reply at every other look, and at the others all that there are, the last one first."""

    looks = 0

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.looks += 1
        replies = super().pull_messages(message_ids)
        while self.looks % 2 == 0 and (more := super().pull_messages(message_ids)):
            replies += more
        return replies[::-1]


@pytest.mark.slow
def test_a_client_that_is_20_times_slower_holds_nobody_up(play):
    """Ten rounds of three clients are 30 uploads. In step with the slow client they take 10 x 20 simulated seconds; at
    two uploads a second they take 15, so the slow client is still busy with its first when the others are done with
    theirs, and is waited for only then: it has sent 1 and each of the others 14 or 15 (a tenth of jitter)."""
    clocks, sent = {}, []
    for mode in ("sync", "async"):
        folder = play(mode, **{"fedhe.mode": mode}, clients=3, rounds=10, client_seconds="1,1,20")
        clocks[mode] = [entry["clock"] for entry in entries(folder)]
        sent = uploads_of(folder)
        assert sum(sent) == 30
        assert summary_of(folder)["failures"] == 0
    assert sent[2] == 1
    assert min(sent[:2]) >= 13
    assert clocks["sync"][-1] == pytest.approx(200, rel=0.1)
    assert clocks["async"][-2] < 20 * 0.9  # nine rounds are over before the slow client's first upload can be in
    assert clocks["async"][-1] == pytest.approx(20, rel=0.11)


@pytest.mark.parametrize(
    ("mbits", "latency", "down", "up", "each_way"),
    [("0.5:0.1", "", 0.5, 0.1, 0.0), ("2", "0.25", 2.0, 2.0, 0.25), ("", "0.25", float("inf"), float("inf"), 0.25)],
)
def test_a_link_takes_the_time_of_the_bytes_on_the_wire(play, mbits, latency, down, up, each_way):
    """Two clients that send the same amount: a round takes as much longer as one of them is sent and sends, in
    megabits, over what its link carries. Where they are evaluated takes no time."""
    keys = {"fedhe.mode": "sync", "rounds": 3, "client_seconds": "1", "evaluate_every": 1}
    plain, rounds = (
        entries(play(number, **keys, **links))
        for number, links in enumerate([{}, {"client_mbits": mbits, "client_latency": latency}])
    )
    for number in (1, 2, 3):
        took, without = (one[number]["clock"] - one[number - 1]["clock"] for one in (rounds, plain))
        carried = 8e-6 * (rounds[number]["wire_down"] / 2 / down + rounds[number]["wire_up"] / 2 / up)
        assert took - without == pytest.approx(2 * each_way + carried, rel=0.02)
        assert carried > 0.05 or mbits != "0.5:0.1"


@pytest.mark.slow
def test_who_has_the_slower_link_uploads_less_often_for_any_number_of_workers(play):
    """Both take a second to train. Client 1's uploads of 3 kB take two seconds more, at 0.012 megabits a second."""
    links = {"clients": 2, "rounds": 6, "client_seconds": "1", "client_mbits": "100,100:0.012"}
    one, two = (play(workers, **links, workers=workers) for workers in (1, 2))
    assert reached(one) == reached(two)
    uploads = uploads_of(one)
    assert sum(uploads) == 12
    assert uploads[0] >= 2 * uploads[1]


@pytest.mark.slow
def test_each_answer_holds_what_the_server_knew_by_then(make_config, run_federation, monkeypatch):
    """Client 0 takes 1 second, client 1 takes 3 (give or take a tenth): 0 uploads at about 1 and 2, then 1 at about 3.
    So client 0's second and third messages hold averages of its own uploads alone, one and two; client 1's second
    message holds all uploads that came before it. Jitter decides which of the uploads at about 3 seconds is first."""
    config = make_config(**ASYNC, rounds=4, client_seconds="1,3", partition="classes:6")
    grid, uploads, learn = Recording(config), list[tuple[int, Arrays]](), FedHe.aggregate

    def aggregate(self: FedHe, server_state: Arrays, came: Sequence[Upload], round: int) -> Arrays:
        uploads.extend((len(grid.log), one.arrays) for one in came)
        return learn(self, server_state, came, round)

    monkeypatch.setattr(FedHe, "aggregate", aggregate)
    run_federation(config, grid)
    assert grid.trained()[:4] == [0, 1, 0, 0]
    for position, (_, task) in enumerate(grid.log):
        if task.kind != MessageType.TRAIN:
            continue
        before = [arrays for sent, arrays in uploads if sent <= position]
        got: Any = task.payload
        for label in range(10):
            seen = [arrays["logits"][label] for arrays in before if arrays["counts"][label]]
            assert bool(got["known"][label]) == bool(seen)
            if seen:
                np.testing.assert_allclose(got["logits"][label], np.mean(seen, axis=0), rtol=1e-5)


@pytest.mark.slow
def test_a_client_never_has_two_messages_at_a_time(make_config, run_federation, monkeypatch):
    config = make_config(**ASYNC, clients=4, rounds=6, client_seconds="1,2,5,7")
    under_way, asked, take = set[int](), list[int](), LocalExchange._take

    def see(grid: Watched, task: Task) -> None:
        assert task.node not in under_way
        if task.kind in (MessageType.TRAIN, MessageType.EVALUATE):
            under_way.add(task.node)
            asked.append(task.node)

    def taken(self: LocalExchange, outcome: Outcome) -> Request:
        sent = take(self, outcome)
        under_way.remove(sent.member.node)
        return sent

    monkeypatch.setattr(LocalExchange, "_take", taken)
    grid = Watched(config, see)
    run_federation(config, grid)
    assert not under_way
    assert len(asked) > 4 * 6


def test_a_round_is_as_many_uploads_as_clients_also_where_more_come_at_once(make_config, run_federation):
    """The first look for replies finds one, whose client is asked for more, and the second finds three: four, where
    the round wants three. No upload is lost, and none is taken beyond the last round's."""
    config = make_config(**ASYNC, clients=3, rounds=3, evaluate_every=3)
    folder = run_federation(config, OneThenAll(config))
    assert [entry["bytes_up"] // 480 for entry in entries(folder)] == [0, 3, 3, 3]
    assert summary_of(folder)["failures"] == 0


def test_the_costs_of_a_round_are_those_of_all_uploads(play):
    """Client 0 is ten times as fast as the others, whose networks are the same."""
    folder = play(clients=4, rounds=4, client_seconds="0.1,1,1,1", costs="flops")
    ups, rounds = uploads_of(folder), entries(folder)
    assert ups[0] > 2 * ups[1]
    for name in ("flops", "samples-seen"):
        sums = [sum(entry["clients"].get(client, {}).get(name, 0) for entry in rounds) for client in "0123"]
        each = [total / up for total, up in zip(sums, ups, strict=True)]
        assert each == pytest.approx([each[0]] * 4, rel=0.1)


def test_with_one_client_there_is_nothing_to_be_asynchronous_about(play):
    """The knowledge and the final metrics are those of the synchronous run, bit for bit."""
    sync, asynchronous = (play(mode, **{"fedhe.mode": mode}, clients=1, rounds=3) for mode in ("sync", "async"))
    assert server_state(sync) == server_state(asynchronous)
    assert entries(sync)[-1]["clients"] == entries(asynchronous)[-1]["clients"]


def test_evaluations_come_when_due_and_everyone_is_measured_at_the_end(play):
    """Due after round 2 of 5. Client 2 needs 20 seconds, so until the end it counts with what it had before training;
    that of the others comes in round 2 or, where the round was over before, in round 3."""
    rounds = entries(play(clients=3, rounds=5, evaluate_every=2, client_seconds="1,1,20"))
    measured = [
        {client: values["accuracy"] for client, values in entry["clients"].items() if "accuracy" in values}
        for entry in rounds
    ]
    assert [sorted(clients) for clients in (measured[0], measured[1], measured[5])] == [list("012"), [], list("012")]
    assert sorted([*measured[2], *measured[3]]) == ["0", "1"]
    assert rounds[1]["accuracy"] is None
    latest = measured[0]
    for entry, new in zip(rounds[2:4], measured[2:4], strict=True):
        latest = {**latest, **new}
        assert entry["accuracy"] == (pytest.approx(np.mean(list(latest.values()))) if new else None)


def test_the_traffic_of_every_evaluation_counts_in_the_last_round_too(play, monkeypatch):
    """Client 2 is slow, so an evaluation that was due earlier comes in the last round, before that of all clients."""
    take, taken = LocalExchange._take, list[int]()

    def counted(self: LocalExchange, outcome: Outcome) -> Request:
        sent = take(self, outcome)
        taken.extend([sent.traffic.wire_up + sent.traffic.wire_down] * (sent.kind == MessageType.EVALUATE))
        return sent

    monkeypatch.setattr(LocalExchange, "_take", counted)
    rounds = entries(play(clients=3, rounds=3, client_seconds="1,1,20"))
    assert sum(entry["evaluation_wire"] for entry in rounds) == sum(taken)


def test_a_client_that_raises_is_named_once_a_round_and_does_not_use_the_rounds_up(
    make_config, run_federation, monkeypatch
):
    learn = FedHeClient.learn

    def broken(self: FedHeClient, download: Any, round: int) -> Any:
        if self.node.client_id == 1:
            raise RuntimeError("the disk is full")
        return learn(self, download, round)

    line = broken.__code__.co_firstlineno + 2
    monkeypatch.setattr(FedHeClient, "learn", broken)
    config = make_config(**ASYNC, clients=3, rounds=3)
    grid = Recording(config)
    rounds = entries(run_federation(config, grid))
    for entry in rounds[1:]:
        [failure] = entry["failures"]
        assert failure["reason"].startswith("client 1, train, round ")
        assert failure["reason"].endswith(f"RuntimeError: the disk is full ({__file__}, line {line})")
    assert grid.trained().count(1) == 3
    assert sum(entry["bytes_up"] for entry in rounds) == 9 * 480


def test_a_number_that_no_message_can_hold_is_refused_where_links_take_time(play, monkeypatch):
    learn = FedHeClient.learn

    def boasting(self: FedHeClient, download: Any, round: int) -> Any:
        upload, metrics = learn(self, download, round)
        return upload, {**metrics, "mood": 2**70 if self.node.client_id == 1 else 1}

    monkeypatch.setattr(FedHeClient, "learn", boasting)
    for entry in entries(play(clients=3, rounds=3, client_mbits="1"))[1:]:
        [failure] = entry["failures"]
        assert failure["reason"].startswith("client 1 (mlp): the reply cannot be serialized: ")


def test_a_client_that_never_answers_is_named_and_left_alone_while_the_others_go_on(
    make_config, run_federation, monkeypatch
):
    """Of the nine uploads that three rounds are worth, the last is the one that it owes."""
    config = make_config(**ASYNC, clients=3, rounds=3, round_timeout=20.0)
    grid = Scripted(config, fate=lambda grid, message: Fate(delay=inf) if trains(message, 2) else GOOD)
    on_its_clock(grid, monkeypatch)
    rounds = entries(run_federation(config, grid))
    failures = [failure for entry in rounds for failure in entry["failures"]]
    assert failures[0]["reason"] == "client 2 (mlp): no reply within 20 s"
    assert len(grid.sent(MessageType.TRAIN, 2)) == 1
    assert sum(entry["bytes_up"] for entry in rounds) == 8 * 480
    assert 20 < grid.now < 60


def trains(message: Message, client_id: int) -> bool:
    """Return whether a message asks a client to train."""
    asked = message.metadata.dst_node_id, message.metadata.message_type
    return asked == (FIRST_NODE + client_id, MessageType.TRAIN)


def test_too_few_good_uploads_end_the_run(play, monkeypatch, refusal):
    monkeypatch.setattr(FedHeClient, "learn", Mock(side_effect=RuntimeError("no memory")))
    assert "min-clients = 1" in refusal(TooFewClients, play, rounds=3)


# --- a run that goes on --------------------------------------------------------------------------

UNEVEN = {"clients": 3, "rounds": 7, "evaluate_every": 2, "client_seconds": "1,1.7,6", "checkpoint_every": 2}
"""At its checkpoints client 2 is busy, and who has been measured last differs."""

SLOW_LINKS = {"client_mbits": "1:0.02,10,0.5:0.05", "client_latency": "0.1,0.3"}
"""A message of some kilobytes takes up to a second."""


def reached(folder: Path) -> list[Any]:
    """Return all that two equal runs have in common, what the newest checkpoint has of each client among it."""
    newest = Checkpoint.read(folder).folder
    return [*all_but_states(folder), {path.name: path.read_bytes() for path in newest.glob("client-*")}]


def dying(after: int) -> Callable[[object, object], None]:
    """Return what ends the run as a kill does when so many messages have been sent."""
    sent = count(1)

    def die(grid: object, what: object) -> None:
        if next(sent) > after:
            raise SystemExit

    return die


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "again", "links"),
    [(1, 1, {}), exhaustive(2, 1, {}), exhaustive(1, 2, {}), (1, 2, SLOW_LINKS), exhaustive(2, 1, SLOW_LINKS)],
)
def test_an_asynchronous_run_that_died_ends_with_the_bits_of_one_that_did_not(
    play, make_config, run_federation, tmp_path, workers, again, links
):
    """Six messages go before the first round, seven rounds have 21 uploads and some evaluations: it dies in round 1, in
    the middle, and next to the end. What was under way at the checkpoint is: the message to client 2, its simulated
    time, the clock, who is to be evaluated, and with how much each counts in the means."""
    whole = play("whole", **UNEVEN, **links)
    for after in (8, 17, 24) if workers == again == 1 else (17,):
        config = make_config(**ASYNC | UNEVEN | links, output_dir=str(tmp_path / str(after)))
        with pytest.raises(SystemExit), Watched(config, dying(after), workers=workers) as grid:
            run_federation(config, grid)
        assert entries(tmp_path / str(after))[-1]["round"] < 7
        folder = run_federation(config.with_values({"resume": True}), workers=again)
        assert reached(folder) == reached(whole)


@pytest.mark.slow
def test_neither_a_stop_nor_checkpoints_change_a_bit_of_an_asynchronous_run(
    play, make_config, run_federation, tmp_path
):
    """Stopped in round 3, which has no checkpoint of its own; the round is finished, and one is written."""
    whole, often, never = (play(every, **UNEVEN | {"checkpoint_every": every}) for every in (2, 1, 0))
    assert reached(whole) == reached(often) == reached(never)
    config = make_config(**ASYNC | UNEVEN)

    def stop(grid: Watched, task: Task) -> None:
        lines = (tmp_path / "run" / "rounds.jsonl").read_bytes().count(b"\n") if task.kind != "answer" else 0
        grid.stop_requested = grid.stop_requested or lines == 3

    with pytest.raises(Interrupted):
        run_federation(config, Watched(config, stop))
    assert Checkpoint.read(tmp_path / "run").round == 3
    again = {"algorithm": "fedhe", "output-dir": str(tmp_path / "run")}
    assert reached(run_one(again, resume=True, workers=1, verbose=True)) == reached(whole)


def test_a_synchronous_run_that_died_has_the_clock_of_one_that_did_not(play, make_config, run_federation):
    keys = {"fedhe.mode": "sync", "rounds": 4, "client_seconds": "1,3", "checkpoint_every": 2}
    whole = play("whole", **keys)
    config = make_config(**ASYNC | keys)
    with pytest.raises(SystemExit), Watched(config, dying(13)) as grid:
        run_federation(config, grid)
    assert reached(run_federation(config.with_values({"resume": True}))) == reached(whole)


@pytest.mark.slow
def test_where_clients_are_elsewhere_none_is_sent_a_number_twice(make_config, run_federation, tmp_path):
    """The server dies beyond its checkpoint; clients have trained by later messages than that knows of."""
    config = make_config(**ASYNC | UNEVEN | {"checkpoint_every": 4}, state_dir=str(tmp_path / "state"))
    folder = Path(config.output_dir)
    numbers: list[set[tuple[int, Any]]] = [set(), set()]

    def note(which: int, message: Message) -> None:
        if message.metadata.message_type == MessageType.TRAIN:
            number = message.content.config_records["config"]["server-round"]
            numbers[which].add((message.metadata.dst_node_id, number))

    die = dying(30)
    died = Meddled(config, asked=lambda grid, message: die(grid, message) or note(0, message))
    with pytest.raises(SystemExit), died:
        run_federation(config, died)
    assert entries(folder)[-1]["round"] > Checkpoint.read(folder).round
    with Meddled(config, asked=lambda grid, message: note(1, message), run=8) as grid:
        run_federation(config.with_values({"resume": True}), grid, run_id=8)
    assert not numbers[0] & numbers[1]
    assert (summary_of(folder)["failures"], summary_of(folder)["rounds"]) == (0, 7)


class Sharers(FedHe):
    sharing = Sharing()


@pytest.mark.parametrize(
    ("strategy", "keys", "said"), [(FedHe, {"fraction": 0.5}, "fraction"), (Sharers, {}, "public samples")]
)
def test_no_clients_are_drawn_and_no_rows_shared_in_an_asynchronous_run(make_config, refusal, strategy, keys, said):
    config = make_config(**ASYNC, **keys)
    federation = Federation(LocalEngine(config, 7), config, strategy(mode="async"))
    assert said in refusal(ConfigError, AsyncRounds, federation)


@pytest.mark.parametrize("sent", [0, 40])
def test_a_client_that_says_it_is_far_ahead_does_not_decide_how_messages_are_numbered(sent):
    members = [post.member(0, round=sent + 2), post.member(1, round=2**53)]
    rounds = AsyncRounds(post.federation_of(*members))
    rounds.resume(Pending({"sent": sent}))
    assert sent + 2 < rounds.under_way().numbers["sent"] < 2 * MAX_AHEAD
