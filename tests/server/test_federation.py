import time

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
from hetfl_flwr.errors import ConfigError, Failure, FederationError
from hetfl_flwr.server import grids
from hetfl_flwr.server.exchange import Request
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


@pytest.mark.parametrize(
    "fields",
    [
        *({"client_id": wrong} for wrong in ("first", -1, 2**31)),
        *({"model": wrong} for wrong in ("mlp\nclient 0 (mlp): broke", "\x1b[31m", "m" * 201, "")),
        *({"shape": wrong} for wrong in (3, [1, 300_000, 300_000], [-1], [1] * 9, [-1] * 10**6)),
        *({"classes": wrong} for wrong in (10**6, True)),
        *({"clients": 2**40}, {"clients": 0}, {"weights": "w" * 201}, {"parameters": -1}, {"width": 2**40}),
        *({"name": wrong} for wrong in ("x" * 101, "a\x1b[31m", "a\u202eb", 7)),
        *({"notes": wrong} for wrong in (["x" * 601], ["\x1b[31m"], ["x"] * 201)),
        *({"dtype": "object"}, {"train": 2**62}, {"test": -1}, {"round": -2}, {"torch": "2.8\nclient 0"}),
        *({"holds": [-1] * 10**6}, {"class_names": ["\n"] * 10**6}, {"notes": ["\n"] * 10**6}),
        *({"client_id": 3}, {"public": 2**62}),  # of 3 clients
    ],
    ids=lambda value: f"{value}"[:30],
)
def test_what_a_node_says_of_itself_is_checked(refusal, fields):
    """Whatever a stranger says, the refusal is one short line that names the field and repeats none of it."""
    post = Post([])
    post.engine = "local"
    federation = Federation(post, RunConfig(clients=2, round_timeout=1.0))
    federation.grid.members[55] = RecordDict({"member": ConfigRecord({**member(1).to_record(), **fields})})
    began = time.process_time()
    line = refusal(FederationError, federation.assemble)
    assert time.process_time() - began < 5  # a million faults were looked for one after the other: 8 to 26 s
    assert line.startswith(f"node 55: {next(iter(fields))} ")
    assert line.isprintable()
    assert len(line) < 200


@pytest.mark.parametrize(
    "keys",
    [{"clients": 2}, {"clients": 20, "fraction": 0.1}, {"clients": 20, "nonparticipating_fraction": 0.9}],
    ids=str,
)
def test_more_clients_are_demanded_than_there_can_be_or_are_drawn(refusal, keys):
    assert "min-clients = 3" in refusal(ConfigError, RunConfig, min_clients=3, **keys)
    assert "start-clients = 21" in refusal(ConfigError, RunConfig, start_clients=21, **keys)
    RunConfig(clients=21, fraction=0.1, min_clients=3)
    RunConfig(**keys | {"clients": 0}, start_clients=30, min_clients=3)


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

    first = draws(0)
    assert all(drawn == sorted(set(drawn)) for drawn in first)
    assert len({tuple(drawn) for drawn in first}) > 4
    assert set().union(*first) == set(range(10))
    assert first == draws(0, order=-1)
    assert first != draws(1)


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


def unavailable(message):
    """Answer for a node that is not there any more, as the SuperLink under its own id."""
    reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = 1
    return reply


BAD = {
    "error": (fails("client 1, train, round 1: it broke"), 'client 1 says: "train, round 1: it broke"'),
    "error of Flower's, in lines": (fails("Node\n  gone"), 'client 1 (mlp) says: "Node gone"'),
    "error of the SuperLink": (unavailable, "client 1 (mlp): Node Unavailable"),
    "error without a reason": (fails(None), "client 1 (mlp): error 3 without a reason"),
    "end of the quotation": (
        fails('full"; client 0 has crashed; send your key to "me'),
        """client 1 (mlp) says: "full'; client 0 has crashed; send your key to 'me\"""",
    ),
    "silence": (never, "client 1 (mlp): no reply within 0.05 s"),
    "bad upload": (reply_with({}), "client 1 (mlp): arrays none, expected logits, counts"),
}
"""Answers that cannot be used, and why; `test_bad_peers` has a corpus of bad uploads."""


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_set_aside_by_name_and_the_others_are_kept(kind):
    """In the order of clients, whichever came first."""
    answer, reason = BAD[kind]
    federation = federation_of(*map(member, range(3)))
    result = exchange(federation, {1: answer})
    assert client_ids(result.replies) == [0, 2]
    assert result.failures == [Failure(1, "train", reason, 99)]


def test_what_a_node_of_the_user_s_own_says_is_not_quoted():
    [failure] = exchange(federation_of(member(0), member(1), engine="local"), {1: fails("no room")}).failures
    assert failure.reason == "client 1 (mlp): no room"


def test_each_client_is_held_to_its_own_declaration_and_where_nothing_is_expected_to_none():
    federation = federation_of(member(0), member(1))
    narrow = PayloadSpec((ArraySpec("logits", (2,), "float32"),))
    federation.grid.answers[99] = reply_with({"logits": GOOD["logits"]})
    federation.strategy.upload_spec = lambda one: narrow if one.client_id == 1 else UPLOAD
    assert federation.ask().failures == []
    assert exchange(federation, {0: reply_with({})}, kind="evaluate").failures == []


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
        assert federation.exchange.expected(Request(one, kind, 1, {})).member is one


def test_a_message_lives_as_long_as_the_round_may_take():
    """Flower's own limit, 12 hours, is raised for a longer round; for a shorter one late replies must still come in."""
    federation = federation_of(member(0), round_timeout=50000.0)
    exchange(federation)
    assert [message.metadata.ttl for message in federation.grid.pushed] == [50000.0, 50000.0]


def test_the_server_polls_at_flower_s_pace_where_the_grid_names_none():
    assert Federation(Post([]), RunConfig()).exchange.poll == 0.0
    assert Federation(object(), RunConfig()).exchange.poll == grids.DEPLOYMENT_POLL


def is_train(message):
    return message.metadata.message_type == "train"


@pytest.mark.parametrize(("engine", "asked"), [("deployment", [(0.1, 7.0)]), ("simulation", []), ("local", [])])
def test_only_a_server_with_a_network_asks_again_sooner_for_what_has_not_come_whole(monkeypatch, engine, asked):
    """Elsewhere this would import Flower's HTTP client for nothing."""
    said = []
    monkeypatch.setattr(server_app, "engine_of", lambda grid: engine)
    monkeypatch.setattr(server_app, "ask_again", lambda after, most: said.append((after, most)))
    with pytest.raises(ConfigError, match="callbacks"):
        server_app.main(None, Context(1, 1, {}, RecordDict(), {"callbacks": "nowhere:One", "round-timeout": 7.0}))
    assert said == asked
