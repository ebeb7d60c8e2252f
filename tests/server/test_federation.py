import time
from types import SimpleNamespace

import numpy as np
import pytest
from fixtures.federations.post import (
    GOOD,
    UPLOAD,
    Federation,
    Post,
    client_ids,
    fails,
    federation_of,
    member,
    never,
    reply_with,
)
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode

from hetfl_flwr import server_app
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, FederationError
from hetfl_flwr.server import grids, messenger
from hetfl_flwr.server.exchange import Sent
from hetfl_flwr.server.member import Failure
from hetfl_flwr.server.registration import Origin, member_from
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire import codec
from hetfl_flwr.wire.codec import wire_bytes
from hetfl_flwr.wire.spec import ArraySpec, PayloadSpec


def exchange(federation, answers=None, kind="train"):
    """Send every member one message; ``answers`` says by client id who answers otherwise than well."""
    federation.grid.answers = {
        one.node: answers[one.client_id] for one in federation.roster if one.client_id in (answers or {})
    }
    return federation.ask(kind=kind)


# --- who is here ---------------------------------------------------------------------------------


def test_the_roster_is_ordered_by_partition_whatever_the_node_ids():
    federation = federation_of(member(2), member(0), member(1))
    assert client_ids(federation.roster) == [0, 1, 2]
    assert [one.node for one in federation.roster] == [100, 99, 98]


def test_the_answer_to_the_register_comes_back_as_it_was():
    here = member(1, model="fedhe:5", shape=(3, 32, 32), weights="abc")
    assert list(federation_of(here, clients=2, start_clients=1).roster) == [here]


@pytest.mark.parametrize(
    "fields",
    [
        *({"client_id": wrong} for wrong in ("first", -1, 2**31)),
        *({"model": wrong} for wrong in ("mlp\nclient 0 (mlp): broke", "\x1b[31m", "m" * 201, "")),
        *({"shape": wrong} for wrong in (3, [1, 300_000, 300_000], [-1], [1] * 9, [-1] * 10**6)),
        *({"classes": wrong} for wrong in (10**6, True)),
        *({"clients": 2**40}, {"clients": 0}, {"weights": "w" * 201}, {"parameters": -1}, {"width": 2**40}),
        *({"dtype": "object"}, {"train": 2**62}, {"test": -1}, {"round": -2}, {"torch": "2.8\nclient 0"}),
        *({"holds": [-1] * 10**6}, {"class_names": ["\n"] * 10**6}, {"notes": ["\n"] * 10**6}),
        *({"client_id": 3}, {"public": 6}),  # of 3 clients, and of 5 training samples
    ],
    ids=lambda value: f"{value}"[:30],
)
def test_what_a_node_says_of_itself_is_checked(refusal, fields):
    """Whatever a stranger says, the refusal is one short line that names the field and repeats none of it."""
    post = Post([])
    post.engine = "local"
    federation = Federation(post, RunConfig(clients=2))
    federation.grid.members[55] = RecordDict({"member": ConfigRecord({**member(1).to_record(), **fields})})
    began = time.process_time()
    line = refusal(FederationError, federation.assemble)
    assert time.process_time() - began < 5  # a million faults were looked for one after the other: 8 to 26 s
    assert line.startswith(f"node 55: {next(iter(fields))} ")
    assert line.isprintable()
    assert len(line) < 200


def test_without_a_number_of_clients_the_nodes_say_how_many_to_wait_for():
    post = Post([member(0), member(1)])
    looks = []

    def joins_late():
        looks.append(1)
        return [100, 99, 98][: 1 + len(looks)]

    post.members[98] = member(2)
    post.get_node_ids = joins_late
    post.engine = "simulation"
    federation = Federation(post, RunConfig(clients=0))
    federation.assemble()
    assert client_ids(federation.roster) == [0, 1, 2]


def test_more_clients_are_demanded_than_there_can_be(refusal):
    for keys in ({"min_clients": 3}, {"start_clients": 3}):
        assert "= 3" in refusal(ConfigError, RunConfig, clients=2, **keys)


def test_more_clients_are_demanded_than_are_drawn(refusal):
    for keys in ({"fraction": 0.1}, {"nonparticipating_fraction": 0.9}):
        assert "min-clients = 3" in refusal(ConfigError, RunConfig, clients=20, min_clients=3, **keys)
    assert RunConfig(clients=21, fraction=0.1, min_clients=3).min_clients == 3
    assert RunConfig(clients=0, start_clients=20, fraction=0.5, min_clients=5).min_clients == 5


def test_a_stranger_s_error_is_not_said_in_another_client_s_name(refusal):
    reply = fails("client 0 (mlp): broke")(Message(RecordDict(), 55, "query"))
    assert refusal(FederationError, member_from, reply, 55) == 'node 55 says: "client 0 (mlp): broke"'


def test_what_a_node_says_cannot_end_its_quotation_and_is_heard_as_its_client_alone(refusal):
    said = 'full"; client 0 has crashed; send your key to "me'
    [failure] = exchange(federation_of(member(0), member(1)), {1: fails(said)}).failures
    assert failure.reason == """client 1 (mlp) says: "full'; client 0 has crashed; send your key to 'me\""""
    own = exchange(federation_of(member(0), member(1), engine="local"), {1: fails("no room")}).failures
    assert own[0].reason == "client 1 (mlp): no room"


def test_a_dead_node_s_reason_is_flower_s_own():
    """The SuperLink answers for a node that is not there any more, under its own id."""

    def unavailable(message):
        reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1
        return reply

    [failure] = exchange(federation_of(member(0), member(1)), {1: unavailable}).failures
    assert failure.reason == "client 1 (mlp): Node Unavailable"


def test_a_late_joiner_is_welcomed_once_and_a_leaver_is_forgotten():
    federation = federation_of(member(0), member(1), clients=3, start_clients=2)
    del federation.grid.members[100]
    federation.grid.members[98] = member(2)
    called = len(federation.grid.pushed)
    assert federation.welcome(1) == [Failure(0, "client registration", "client 0 (mlp): its node has left", 100)]
    assert client_ids(federation.roster) == [1, 2]
    assert [message.metadata.dst_node_id for message in federation.grid.pushed[called:]] == [98]
    assert federation.welcome(1) == []
    assert len(federation.grid.pushed) == called + 1


def test_a_node_that_comes_back_under_another_id_takes_its_partition_up_again():
    federation = federation_of(member(0), member(1))
    del federation.grid.members[99]
    federation.grid.members[5] = member(1, node=5)
    assert [failure.node for failure in federation.welcome(1)] == [99]
    assert [(one.client_id, one.node) for one in federation.roster] == [(0, 100), (1, 5)]


def test_without_a_number_of_clients_one_that_cannot_take_part_is_left_out(refusal):
    """In a simulation, too, where with a number each client is wanted, and the first that fails ends the run before
    round 1. A client that fails alone ends it, too: the mistake is everybody's."""
    post = Post([member(0), member(1)])
    post.engine = "simulation"
    known = post.register
    post.register = lambda message: (fails("client 1, no data") if message.metadata.dst_node_id == 99 else known)(
        message
    )
    assert refusal(FederationError, Federation(post, RunConfig(clients=2)).assemble) == "client 1, no data"
    federation = Federation(post, RunConfig(clients=0, round_timeout=0.05))
    federation.assemble()
    assert client_ids(federation.roster) == [0]
    assert federation.notes() == [Failure(-1, "client registration", "client 1, no data", 99)]
    assert federation.notes() == []
    said = refusal(FederationError, Federation(post, RunConfig(clients=0, min_clients=2, round_timeout=0.05)).assemble)
    assert said == "min-clients = 2, but there are 1 clients; client 1, no data"
    del post.members[100]
    assert refusal(FederationError, Federation(post, RunConfig(clients=0)).assemble) == "client 1, no data"


def test_a_simulation_hears_all_nodes_before_it_says_that_none_can_take_part():
    """Client 0 says at once that it cannot; the others take their time."""
    post, late = Post([member(0), member(1), member(2)]), []
    post.engine, nodes = "simulation", post.get_node_ids
    post.register = lambda message: (
        fails("no data")(message) if message.metadata.dst_node_id == 100 else late.append(Post.register(post, message))
    )
    post.get_node_ids = lambda: post._replies.extend(late) or nodes()
    federation = Federation(post, RunConfig(clients=0))
    federation.assemble()
    assert client_ids(federation.roster) == [1, 2]


def dated(*members):
    """Return an assembled federation whose Grid knows since when nodes are there, and these moments by node."""
    since = {one.node: "noon" for one in members}
    post = Post(members)
    post.get_nodes = lambda: [SimpleNamespace(node_id=node, last_activated_at=at) for node, at in since.items()]
    federation = Federation(post, RunConfig(clients=len(members), round_timeout=0.05))
    federation.assemble()
    return federation, since


def test_a_node_that_dies_when_it_is_asked_again_is_no_client_any_more():
    federation, since = dated(member(0), member(1))
    since[99] = "one"
    federation.grid.register = lambda message: Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
    [unavailable] = federation.welcome(1)
    assert (unavailable.node, "gone" in unavailable.reason) == (99, True)
    assert client_ids(federation.roster) == [0]


def test_a_node_that_has_restarted_is_asked_again_and_says_what_it_still_has():
    """It holds nobody's public samples any more, and comes without the model that it had trained until round 1."""
    federation, since = dated(member(0, round=1, holds=[1]), member(1, round=1, holds=[0]))
    exchange(federation)
    assert federation.roster.trained == {0: 1, 1: 1}
    called = len(federation.grid.pushed)
    since[99], federation.grid.members[99] = "one", member(1, round=0, holds=[])
    [failure] = federation.welcome(1)
    assert (failure.client_id, failure.stage, failure.node) == (1, "client registration", 99)
    assert failure.reason == "client 1 (mlp): comes without its state, but it has trained until round 1: see state-dir"
    assert [message.metadata.dst_node_id for message in federation.grid.pushed[called:]] == [99]
    assert federation.roster.of(99).holds == ()
    assert federation.welcome(1) == []


@pytest.mark.parametrize(("newest", "left"), [((4, 4), None), ((4, 0), 1), ((0, 3), 0), ((0, 0), "all")])
def test_a_run_that_is_gone_on_with_names_clients_without_their_state(refusal, newest, left):
    members = [member(client_id, round=round) for client_id, round in enumerate(newest)]
    federation = Federation(Post(members), RunConfig(clients=2), Origin(12, 4, {0: 4, 1: 3}))
    if left == "all":
        assert refusal(FederationError, federation.assemble).startswith("no client has its state of run 12")
        return
    federation.assemble()
    told = [dict(message.content.config_records["config"]) for message in federation.grid.pushed]
    assert told == [{"run": "12", "server-round": 4}] * 2
    assert [failure.client_id for failure in federation.notes()] == ([] if left is None else [left])


def test_in_a_simulation_who_does_not_answer_in_time_or_has_anothers_number_is_left_out():
    post = Post([member(0), member(1), member(1, node=7), member(2, node=6)])
    post.engine, known = "simulation", post.register
    post.register = lambda message: None if message.metadata.dst_node_id == 6 else known(message)
    federation = Federation(post, RunConfig(clients=0, round_timeout=0.05))
    federation.assemble()
    assert [failure.reason for failure in federation.welcome(1)] == [
        "partition-id 1 is claimed by two nodes, 7 and 99",
        "node 6: no answer yet: it is loading its data, or has to be started again if its log says nothing new",
    ]
    assert [(one.client_id, one.node) for one in federation.roster] == [(0, 100), (1, 7)]
    assert federation.welcome(1) == []
    assert len(post.pushed) == 4


def test_clients_must_agree_on_the_classes(refusal):
    assert Roster([member(0), member(1)]).classes == 2
    said = refusal(FederationError, lambda: Roster([member(0), member(1, classes=3, model="lenet5")]).classes)
    assert "client 0 has 2" in said
    assert "client 1 has 3" in said
    assert "no client is here" in refusal(FederationError, lambda: Roster().classes)


def test_unlike_models_are_named_with_their_clients_and_with_what_would_do(refusal):
    many = [member(k, weights="big", model="lenet5") for k in range(2, 9)]
    roster = Roster([member(0), *many, member(1)])
    said = refusal(FederationError, roster.check_same_weights, "fedavg", ["fedhe", "local"])
    assert "client 0, 1 has mlp; client 2, 3, 4, 5, 6 and 2 more has lenet5" in said
    assert said.endswith("fedhe, local")
    Roster([member(0), member(1)]).check_same_weights("fedavg", [])


# --- who takes part ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "clients", "count"),
    [(1.0, 10, 10), (0.5, 10, 5), (0.41, 10, 5), (0.05, 10, 1), (1e-9, 10, 1), (0.14, 50, 7), (0.07, 100, 7)],
)
def test_a_fraction_of_the_clients_is_drawn_rounded_up(fraction, clients, count):
    """0.14 * 50 and 0.07 * 100 are 7.000000000000001 in binary arithmetic, and 7 for a reader."""
    federation = federation_of(*map(member, range(clients)), fraction=fraction)
    assert len(federation.draw(1)) == count


def test_the_draw_is_sorted_without_repeats_and_follows_seed_and_round_alone():
    def draws(seed, order=1):
        federation = federation_of(*[member(k) for k in range(10)][::order], fraction=0.5, seed=seed)
        return [client_ids(federation.draw(number)) for number in range(1, 9)]

    assert all(drawn == sorted(set(drawn)) for drawn in draws(0))
    assert len({tuple(drawn) for drawn in draws(0)}) > 4
    assert set().union(*draws(0)) == set(range(10))
    assert draws(0) == draws(0, order=-1)
    assert draws(0) != draws(1)


def test_absent_clients_are_never_drawn():
    """0.3 of 10 clients are 3, the same in each round; half of the other 7, rounded up, are 4."""

    def drawn(seed):
        federation = federation_of(*map(member, range(10)), nonparticipating_fraction=0.3, fraction=0.5, seed=seed)
        draws = [frozenset(client_ids(federation.draw(number))) for number in range(1, 30)]
        assert {len(drawn) for drawn in draws} == {4}
        return frozenset.union(*draws)

    assert {len(drawn(seed)) for seed in range(3)} == {7}
    assert len({drawn(seed) for seed in range(3)}) == 3


# --- what they answer ----------------------------------------------------------------------------


def test_replies_are_sorted_by_partition_in_whatever_order_they_come():
    federation = federation_of(member(2), member(0), member(1))
    result = exchange(federation)
    assert client_ids(result.replies) == [0, 1, 2]
    assert result.failures == []


BAD = {
    "error": (fails("client 1, train, round 1: it broke"), 'client 1 says: "train, round 1: it broke"'),
    "error of Flower's, in lines": (fails("Node\n  gone"), 'client 1 (mlp) says: "Node gone"'),
    "error without a reason": (fails(None), "client 1 (mlp): error 3 without a reason"),
    "silence": (never, "client 1 (mlp): no reply within 0.05 s"),
    "bad upload": (reply_with({}), "arrays none, expected logits, counts"),
}
"""Answers that cannot be used; `test_bad_peers` has a corpus of bad uploads."""


@pytest.mark.parametrize("kind", list(BAD))
def test_a_bad_reply_is_set_aside_by_name_and_the_others_are_kept(kind):
    answer, said = BAD[kind]
    federation = federation_of(*map(member, range(3)))
    result = exchange(federation, {1: answer})
    assert client_ids(result.replies) == [0, 2]
    [failure] = result.failures
    assert (failure.client_id, failure.stage) == (1, "train")
    assert failure.reason.startswith("client 1")
    assert said in failure.reason
    assert "\n" not in failure.reason


def test_arrays_are_not_looked_at_where_none_are_expected():
    federation = federation_of(member(0), member(1))
    result = exchange(federation, {0: reply_with({})}, kind="evaluate")
    assert len(result.replies) == 2


def test_each_client_is_held_to_its_own_declaration():
    federation = federation_of(member(0), member(1))
    narrow = PayloadSpec((ArraySpec("logits", (2,), "float32"),))
    federation.grid.answers[99] = reply_with({"logits": GOOD["logits"]})
    federation.strategy.upload_spec = lambda one: narrow if one.client_id == 1 else UPLOAD
    assert federation.ask().failures == []


def test_traffic_is_measured_for_each_client_both_ways_of_bad_replies_too():
    federation = federation_of(*map(member, range(4)))
    federation.grid.answers = {98: fails("no"), 97: never}
    downloads = [(one, {"a": np.zeros(10 * (1 + one.client_id))}) for one in federation.roster]
    result = federation.exchange.ask("train", 1, downloads)
    sent = [message for message in federation.grid.pushed if is_train(message)]
    assert list(result.traffic) == [0, 1, 2, 3]
    assert [one.bytes_down for one in result.traffic.values()] == [80, 160, 240, 320]
    assert [one.wire_down for one in result.traffic.values()] == [wire_bytes(message) for message in sent]
    assert [one.bytes_up for one in result.traffic.values()] == [24, 24, 0, 0]  # 2 float32 and 2 int64
    up = [one.wire_up for one in result.traffic.values()]
    assert up[:2] == [wire_bytes(reply_with()(message)) for message in sent[:2]]
    assert up[0] > up[2] > up[3] == 0


def test_an_upload_is_decoded_once(monkeypatch):
    """Two arrays of each of two clients, for the check, the guard and the strategy."""
    decoded, read = [], codec._array
    monkeypatch.setattr(codec, "_array", lambda data, *rest: decoded.append(data) or read(data, *rest))
    federation = federation_of(member(0), member(1))
    result = exchange(federation)
    for reply in result.replies:
        assert set(reply.arrays) == {"logits", "counts"}
        assert (reply.upload.client_id, reply.upload.samples) == (reply.client_id, 5)
    assert len(decoded) == 4


def test_nothing_sent_is_nothing_received():
    result = federation_of(member(0)).exchange.ask("train", 1, [])
    assert (result.replies, result.failures, result.traffic) == ([], [], {})


def test_replies_to_something_else_are_passed_over():
    """Such as the late reply of a round that is over."""
    federation = federation_of(member(0))
    stray = Message(RecordDict(), 100, "train")
    stray.metadata.__dict__["_message_id"] = "of another round"
    late = reply_with({}, {"num-examples": 99})(stray)
    federation.grid._replies.append(late)
    [reply] = exchange(federation).replies
    assert reply.samples == 5


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
def test_an_answer_is_held_against_the_member_that_was_asked(kind):
    """Its node may have registered anew since, and an answer to what it was sent before may come between."""
    federation = federation_of(member(0), member(1), member(2))
    old, new = federation.roster.of(99), member(1, train=50, test=50)
    federation.roster.remove(99)
    federation.roster.add(new)
    for one in (old, new, old):
        assert federation.exchange.expected(Sent(one, kind, 1, {})).member is one


def test_a_message_lives_as_long_as_the_round_may_take():
    """Flower's own limit, 12 hours, is raised for a longer round; for a shorter one late replies must still come in."""
    federation = federation_of(member(0), round_timeout=50000.0)
    exchange(federation)
    assert [message.metadata.ttl for message in federation.grid.pushed] == [50000.0, 50000.0]


def test_the_server_polls_at_flower_s_pace_where_the_grid_names_none():
    assert Federation(Post([]), RunConfig()).exchange.poll == 0.0
    assert Federation(object(), RunConfig()).exchange.poll == grids.DEPLOYMENT_POLL


def test_a_slow_node_is_sent_nothing_more_until_its_late_reply_is_in():
    """Client 1 misses round 1, is left alone in round 2, answers at last, and takes part in round 3."""
    federation = federation_of(member(0), member(1))
    grid, slow = federation.grid, 99
    missed = exchange(federation, {1: never})
    assert [failure.reason for failure in missed.failures] == ["client 1 (mlp): no reply within 0.05 s"]
    late = next(message for message in grid.pushed if message.metadata.dst_node_id == slow and is_train(message))
    left_alone = exchange(federation)
    assert [failure.reason for failure in left_alone.failures] == ["client 1 (mlp): still busy with an earlier message"]
    assert sorted(left_alone.traffic) == [0]
    assert sum(is_train(message) and message.metadata.dst_node_id == slow for message in grid.pushed) == 1
    grid._replies.append(reply_with()(late))
    back = exchange(federation)
    assert back.failures == []
    assert sorted(back.traffic) == [0, 1]


def by_its_looks(monkeypatch):
    """Return a federation of two, and a clock that goes on by a second each time that it looks for replies."""
    federation, clock = federation_of(member(0), member(1), round_timeout=100.0), [0.0]
    monkeypatch.setattr(messenger, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: None))
    pull = federation.grid.pull_messages

    def pulled(numbers):
        clock[0] += 1
        return pull(numbers)

    monkeypatch.setattr(federation.grid, "pull_messages", pulled)
    return federation, clock


@pytest.mark.parametrize("came", [False, True])
def test_a_node_that_has_said_again_who_it_is_has_lost_what_it_was_sent_before(monkeypatch, came):
    """It answers one message after the other: the late reply is there by then, or never."""
    federation, _ = by_its_looks(monkeypatch)
    [failure] = exchange(federation, {1: never}).failures
    assert failure.reason.endswith("no reply within 100 s")
    [failure] = exchange(federation, {}).failures
    assert failure.reason.endswith("still busy with an earlier message")
    [node] = [one.node for one in federation.roster if one.client_id == 1]
    if came:
        [late] = [
            message for message in federation.grid.pushed if message.metadata.dst_node_id == node and is_train(message)
        ]
        federation.grid._replies.append(reply_with()(late))
    federation.exchange.answers_again(node)
    assert federation.exchange.busy() == set()
    assert exchange(federation, {}).failures == []


def is_train(message):
    return message.metadata.message_type == "train"


@pytest.mark.parametrize(("engine", "asked"), [("deployment", [0.1]), ("simulation", []), ("local", [])])
def test_only_a_server_with_a_network_asks_again_sooner_for_what_has_not_come_whole(monkeypatch, engine, asked):
    """Elsewhere this would import Flower's HTTP client for nothing."""
    said = []
    monkeypatch.setattr(server_app, "engine_of", lambda grid: engine)
    monkeypatch.setattr(server_app, "ask_again", lambda after: said.append(after))
    with pytest.raises(ConfigError, match="unknown"):
        server_app.main(None, Context(1, 1, {}, RecordDict(), {"no-such-key": 1}))
    assert said == asked
