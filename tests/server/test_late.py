"""Clients that come late, leave, come back, lag or always fail: what the others and the server make of it."""

from collections.abc import Callable, Mapping
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import pytest
from fixtures.federations.grids import little
from fixtures.folders.reached import clients_of, server_state, summary_of
from fixtures.wrong.faults import GOOD, Fate, Scripted, failing, on_its_clock
from flwr.app import Message, MessageType
from flwr.common.constant import ErrorCode

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import TooFewClients
from hetfl_flwr.methods import build_strategy, find, names
from hetfl_flwr.server.exchange import BUSY
from hetfl_flwr.wire.messages import CONFIG, POOL, ROUND, SHARE
from simulations.engine.clients import FIRST_NODE
from simulations.testing.contract import entries

ALGORITHMS = names()
TIMEOUT = 20.0


@pytest.fixture
def config_for(make_config):
    """Build a config for an algorithm: three clients and hardly any work."""

    def build(name: str, **keys: Any) -> RunConfig:
        return make_config(**{**little(name), "rounds": 4, "evaluate-every": 4, "round-timeout": TIMEOUT, **keys})

    return build


@pytest.fixture
def played(run_federation, monkeypatch):
    """Run a federation by a Grid's own clock and return its rounds."""

    def play(grid: Scripted, config: RunConfig) -> list[dict[str, Any]]:
        on_its_clock(grid, monkeypatch)
        return entries(run_federation(config, grid))

    return play


def folder_of(config: RunConfig) -> Path:
    return Path(config.output_dir)


def trained(rounds: list[dict[str, Any]]) -> list[str]:
    """Return who has trained in each round from 1 on."""
    return ["".join(sorted(k for k, told in entry["clients"].items() if "train-loss" in told)) for entry in rounds[1:]]


def reasons(entry: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(failure["partition"], failure["stage"], failure["reason"]) for failure in entry["failures"]]


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return {key: array.tobytes() for key, array in one.items()} == {k: array.tobytes() for k, array in other.items()}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_joins_during_round_2_takes_part_from_round_3_with_the_knowledge_so_far(name, config_for, played):
    """It is sent what client 0 is sent: averages, heads, consensus or weights of rounds 1 and 2. In FedH2L that are the
    signals of both others. Public samples go to it and from it to all."""
    config = config_for(name, start_clients=2)
    grid = Scripted(config, {3: lambda grid: grid.join(2)})
    rounds = played(grid, config)
    assert trained(rounds) == ["01", "01", "012", "012"]
    assert [entry["failures"] for entry in rounds] == [[]] * 5
    first, [own, _] = grid.sent(MessageType.TRAIN, 0), grid.sent(MessageType.TRAIN, 2)
    if name == "fedh2l":
        assert [download["teachers"].tolist() for download in first] == [[], [1], [1], [1, 2]]
        assert own["teachers"].tolist() == [0, 1]
    elif name == "fedkd":  # the whole mentee; client 0 is sent what has become of that of round 1
        assert [(int(download["round"]), int(download["before"])) for download in (own, first[2])] == [(2, -1), (2, 1)]
    elif name == "fd":  # each is taught by the others
        assert own["known"].any()
    else:
        assert same(own, first[2])
        assert name in ("agg", "local") or not same(own, first[0])
    sharing = build_strategy(config).sharing
    pools = [[sorted({key.rpartition(".")[2] for key in pool}) for pool in grid.sent(POOL, k)] for k in range(3)]
    to_clients = sharing is not None and sharing.to_clients
    assert pools == ([[["1"], ["2"]], [["0"], ["2"]], [["0", "1"]]] if to_clients else [[], [], []])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_leaves_is_noticed_once_and_under_another_node_id_keeps_partition_and_state(
    name, config_for, played, tmp_path
):
    """A new process with the same state folder goes on as the old one would have, had only its network been down."""
    runs = []
    for number, back in enumerate((lambda grid: grid.come_back(1), lambda grid: grid.join(1, 1))):
        places = {"state_dir": str(tmp_path / f"state-{number}"), "output_dir": str(tmp_path / f"run-{number}")}
        config = config_for(name, rounds=5, **places)
        rounds = played(Scripted(config, {3: lambda grid: grid.leave(1), 5: back}), config)
        assert trained(rounds) == ["012", "012", "02", "02", "012"]
        [(client_id, _, reason)] = reasons(rounds[3])
        assert (client_id, "left" in reason) == (1, True)
        assert [reasons(entry) for entry in (*rounds[:3], *rounds[4:])] == [[]] * 5
        runs.append(([entry["clients"] for entry in rounds], server_state(folder_of(config))))
    assert runs[0] == runs[1]


def test_who_has_left_stays_in_the_files_of_a_run_that_is_resumed_without_it(config_for, played, tmp_path):
    config = config_for("fedhe", rounds=2, evaluate_every=1, start_clients=2, state_dir=str(tmp_path / "state"))
    played(Scripted(config, {0: lambda grid: grid.join(2)}), config)
    keys = ("partition", "model", "train", "bytes_up", "bytes_down")
    before = {key: clients_of(folder_of(config))[2][key] for key in keys}
    assert before["bytes_up"] > 0
    for rounds in (3, 4):
        more = config.with_values({"resume": True, "rounds": rounds})
        played(Scripted(more), more)
        assert {key: clients_of(folder_of(config))[2][key] for key in keys} == before
        assert summary_of(folder_of(config))["clients"] == 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_is_slow_misses_its_round_and_is_welcome_in_the_next(name, config_for, played, tmp_path):
    """Its late upload is dropped: everything comes as if it had been an error."""
    runs = []
    for said, fate in (
        ("no reply within 20 s", Fate(delay=TIMEOUT + 3)),
        ("no memory", failing("client 1: no memory")),
    ):
        config = config_for(name, output_dir=str(tmp_path / said))
        slow = lambda grid, message, fate=fate: fate if (trains(grid, message), grid.looks) == (1, 2) else GOOD  # noqa: E731
        rounds = played(Scripted(config, fate=slow), config)
        assert trained(rounds) == ["012", "02", "012", "012"]
        [(client_id, stage, reason)] = reasons(rounds[2])
        assert (client_id, stage) == (1, "train")
        assert said in reason
        runs.append(([entry["clients"] for entry in rounds], server_state(folder_of(config))))
    assert runs[0] == runs[1]


def test_a_reply_that_does_not_come_whole_costs_the_others_no_round(config_for, played):
    """The server waits for the rest of client 0's reply until the others' time is over, and then looks for theirs."""

    def fate(grid: Scripted, message: Message) -> Fate:
        client_id = trains(grid, message)
        if client_id is None or message.content.config_records[CONFIG][ROUND] != 2:
            return GOOD
        if client_id > 0:
            return Fate(delay=2)
        incomplete = failing("client 0: incomplete")

        def wait(reply: Message) -> None:
            grid.now += TIMEOUT
            incomplete.change(reply)

        return Fate("incomplete", change=wait)

    config = config_for("fedhe")
    assert trained(played(Scripted(config, fate=fate), config)) == ["012", "12", "012", "012"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_fails_at_everything_it_is_asked_ends_no_run(name, config_for, played):
    """Client 1 from the first registration on, and client 2, which joins before round 2, at each registration, which is
    said once."""

    def fate(grid: Scripted, message: Message) -> Fate:
        client_id, registers = grid.client_of(message), message.metadata.message_type == MessageType.QUERY
        good = client_id == 0 or (client_id == 1 and registers)
        return GOOD if good else failing(f"client {client_id}: no memory")

    config = config_for(name, start_clients=2)
    rounds = played(Scripted(config, {2: lambda grid: grid.join(2)}, fate), config)
    assert trained(rounds) == ["0"] * 4
    for entry in rounds[:1] + rounds[2:]:  # who has not shared its rows before round 1 is asked again before round 2
        assert any("no memory" in reason for client_id, _, reason in reasons(entry) if client_id == 1)
        registration = [reason for _, stage, reason in reasons(entry) if stage == "client registration"]
        assert registration == [f'node {FIRST_NODE + 2} says: "client 2: no memory"'] * (entry["round"] == 2)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_when_all_have_left_the_run_ends_and_what_was_reached_is_kept(name, config_for, played, refusal, monkeypatch):
    monkeypatch.setattr(
        "flwr.serverapp.strategy.strategy_utils.sleep", lambda seconds: pytest.fail("waits for nodes for ever")
    )
    config = config_for(name)
    grid = Scripted(config, {3: lambda grid: [grid.leave(client_id) for client_id in range(3)]})
    assert "round 3: " in refusal(TooFewClients, played, grid, config)
    assert trained(entries(folder_of(config))) == ["012", "012", ""]


def trains(grid: Scripted, message: Message) -> int | None:
    """Return the client that a message asks to train; None where it asks for something else."""
    return grid.client_of(message) if message.metadata.message_type == MessageType.TRAIN else None


def restarting(config: RunConfig, when: Callable[[Scripted, Message], bool]) -> Scripted:
    """Return a Grid on which a node restarts as soon as it is asked to train, at some time or in some rounds."""
    generations = count(1)

    def fate(grid: Scripted, message: Message) -> Fate:
        client_id = trains(grid, message)
        if client_id is None or not when(grid, message):
            return GOOD
        grid.leave(client_id)
        grid.join(client_id, generation=next(generations))
        return Fate("no reply", delay=inf)

    return Scripted(config, fate=fate)


@pytest.mark.parametrize(("lost", "end"), [({2}, 0), ({2, 3, 4}, 0), ({2, 3, 4, 5}, 5), ({6}, 6)])
def test_a_round_in_which_all_nodes_restart_is_lost_and_the_run_goes_on_but_not_for_ever(
    lost, end, config_for, played, refusal
):
    """It ends with the fourth in a row, or where the last round is lost."""
    config = config_for("fedhe", rounds=6)
    grid = restarting(config, lambda grid, message: message.content["config"]["server-round"] in lost)
    if end:
        said = refusal(TooFewClients, played, grid, config)
        assert said.startswith(f"round {end}: ")
        assert "no reply within 20 s" in said
    else:
        played(grid, config)
    who = trained(entries(folder_of(config)))
    assert who == ["" if number in lost else "012" for number in range(1, (end or 6) + 1)]


def test_an_asynchronous_run_goes_on_too_when_all_nodes_have_restarted(config_for, played):
    config = config_for("fedhe", rounds=12, **{"fedhe.mode": "async"})
    who = trained(played(restarting(config, lambda grid, message: 20 < grid.now < 60), config))
    assert len(who) == 12
    assert "" in who
    assert who[-1]


def test_an_asynchronous_run_waits_no_longer_for_what_a_restarted_node_had_begun(config_for, played):
    """Client 1 loses its second message. The last round waits for all that is under way, and not for that."""

    def fate(grid: Scripted, message: Message) -> Fate:
        if trains(grid, message) != 1 or len(grid.sent(MessageType.TRAIN, 1)) != 1:
            return GOOD
        grid.restart(1)
        return Fate("restarted", delay=inf)

    config = config_for("fedhe", **{"fedhe.mode": "async", "round-timeout": 500.0})
    grid = Scripted(config, fate=fate)
    rounds = played(grid, config)
    assert len(rounds) == 5
    said = [reason for entry in rounds for reason in reasons(entry)]
    assert (1, "train", "client 1 (mlp): its node has left or restarted before it answered") in said
    assert grid.now < 100


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_node_whose_connection_was_away_for_a_moment_loses_nothing(mode, config_for, played):
    """It looks as if it had restarted, and is asked who it is; that it answers when it has uploaded what it has learnt.

    Until then it is sent nothing else: it may be another than before.
    """

    def fate(grid: Scripted, message: Message) -> Fate:
        if trains(grid, message) == 1 and len(grid.sent(MessageType.TRAIN, 1)) == 1:
            grid.restart(1)
        return GOOD if trains(grid, message) is None else Fate(delay=50)

    config = config_for("fedhe", **{"fedhe.mode": mode, "round-timeout": 500.0})
    rounds = played(Scripted(config, fate=fate), config)
    assert {reason.partition(": ")[2] for entry in rounds for _, _, reason in reasons(entry)} <= {BUSY}
    assert trained(rounds)[:2] == ["012"] * 2
    assert sum(map(len, trained(rounds))) >= 11


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_after_a_power_cut_the_run_goes_on_as_soon_as_the_nodes_are_back(mode, config_for, played):
    """All restart in their places while they train; the run waits for nothing that is lost, however long it may."""
    cut = [inf]

    def fate(grid: Scripted, message: Message) -> Fate:
        client_id = trains(grid, message)
        if client_id is None or cut[0] < grid.now:
            return GOOD
        if len(grid.sent(MessageType.TRAIN, client_id)) == 2:
            cut[0] = grid.now
            for each in range(3):
                grid.restart(each)
        return Fate("restarted", delay=inf) if cut[0] <= grid.now else GOOD

    config = config_for("fedhe", min_clients=3, **{"fedhe.mode": mode, "round-timeout": 3600.0})
    grid = Scripted(config, fate=fate)
    assert len(played(grid, config)) == 5
    assert grid.now < 200


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if find(name).strategy.sharing])
def test_who_restarts_while_public_samples_are_shared_takes_part_in_round_1(name, config_for, played):
    """With as many clients as ``min-clients``, too: it is welcomed, and shares, before that round as before all."""
    done: list[str] = []

    def fate(grid: Scripted, message: Message) -> Fate:
        if message.metadata.message_type != SHARE or grid.client_of(message) != 1 or done:
            return GOOD
        done.append("left")
        grid.leave(1)
        return Fate("no reply", delay=inf)

    def look() -> None:
        if done == ["left"]:
            done.append("back")
            grid.join(1, generation=1)

    config = config_for(name, min_clients=3)
    grid = Scripted(config, fate=fate)
    grid.look = look  # type: ignore[method-assign]
    assert trained(played(grid, config)) == ["012"] * 4


def test_who_says_that_its_node_is_not_there_has_not_left_for_that(config_for, played, refusal):
    """A node may write any error into its reply."""
    config = config_for("fedhe", min_clients=3)
    away = failing("Node Unavailable", ErrorCode.NODE_UNAVAILABLE)
    grid = Scripted(config, fate=lambda grid, message: away if trains(grid, message) == 2 else GOOD)
    assert "min-clients = 3: client 2 " in refusal(TooFewClients, played, grid, config)


def test_nobody_trains_where_too_few_are_here(config_for, played, refusal):
    """What they would send would be thrown away, and count for epsilon."""
    config = config_for("fedhe", min_clients=3)
    grid = Scripted(config, {3: lambda grid: grid.leave(1)})
    said = refusal(TooFewClients, played, grid, config)
    assert "only 2 clients could be asked" in said
    asked = [message for event, message, _ in grid.log if event == "sent"]
    assert sum(message.metadata.message_type == MessageType.TRAIN for message in asked) == 6


def test_who_joins_late_is_sent_the_newest_averages_in_an_asynchronous_run(config_for, played):
    """Round 3 is three uploads, of clients 0, 1 and 2; what client 2 is sent first holds all that came before it."""
    config = config_for("fedhe", start_clients=2, **{"fedhe.mode": "async"})
    grid = Scripted(config, {3: lambda grid: grid.join(2)})
    rounds = played(grid, config)
    assert [entry["failures"] for entry in rounds] == [[]] * 5
    assert ["2" in clients for clients in trained(rounds)] == [False, False, True, True]
    own = grid.sent(MessageType.TRAIN, 2)[0]
    earlier = [download for k in (0, 1) for download in grid.sent(MessageType.TRAIN, k)]
    assert own["known"].sum() >= max(download["known"].sum() for download in earlier[:2])
    assert own["known"].any()
