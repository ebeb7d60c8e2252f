"""The start: who is waited for and how long, whose word counts, and who is left out by name."""

import re
from itertools import count, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fixtures.federations.post import Federation, Post, client_ids, fails, member, never
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from hetfl_flwr.common.versions import installed
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, Failure, FederationError
from hetfl_flwr.server import messenger, registration
from hetfl_flwr.server.node_keys import NodeKeys
from hetfl_flwr.server.registration import Origin
from hetfl_flwr.wire.messages import REGISTRATION
from simulations.deployment.keys import write_node_keys


class Clock:
    """Stands in for the module ``time``: nothing sleeps, and what is to happen when happens in `sleep`."""

    def __init__(self):
        self.now = 0.0
        self.events = {}

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for due in [due for due in self.events if due <= self.now]:
            self.events.pop(due)()


@pytest.fixture
def clock(monkeypatch):
    """A clock that the server goes by."""
    clock = Clock()
    for module in (messenger, registration):
        monkeypatch.setattr(module, "time", clock)
    return clock


def post_of(*members, engine="deployment", answers=None):
    """Return a Grid of these nodes, of which some answer the client registration in ways of their own, by node id."""
    post = Post(members)
    post.engine = engine
    known = post.register
    post.register = lambda message: (answers or {}).get(message.metadata.dst_node_id, known)(message)
    return post


def honest(clients, **fields):
    return [member(client_id, clients=clients, **fields) for client_id in range(clients)]


def started(post, check=None, **keys):
    federation = Federation(post, RunConfig(**keys))
    federation.assemble(check)
    return federation


def same_classes(roster):
    _ = roster.classes


without_data = fails("no data")


def unavailable(message):
    """Answer as the SuperLink does for a node that it still lists; a node may write that into its own reply."""
    return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)


# --- when a run begins ---------------------------------------------------------------------------

ALL, TWO = honest(3), honest(3)[:2]
LIAR = member(0, node=1, clients=10**6)
BEYOND = [member(number, node=number, clients=10**6) for number in (7, 8)]
FIVE = honest(5)
QUORUM = {"clients": 5, "start_clients": 3, "min_clients": 3, "start_timeout": 60}
DRAWN, IDLE = QUORUM | {"fraction": 0.6}, QUORUM | {"nonparticipating_fraction": 0.4}

BEGINS = {  # who is here at first, who comes after 20 s, the run config; who is in, and after how many seconds
    "all are here": (ALL, [], {"clients": 3}, [0, 1, 2], 0),
    "a lone liar says that it is alone": ([member(0, clients=1)], ALL[1:], {"clients": 3}, [0, 1, 2], 20),
    "the first says a million": ([LIAR], ALL[1:], {"clients": 3}, [0, 1, 2], 20),
    "numbers beyond the clients": ([*TWO, *BEYOND], ALL[2:], {"clients": 3}, [0, 1, 2], 20),
    "one is off": (TWO, [], {"clients": 3}, [0, 1], 600),
    "a short round-timeout": (TWO, [], {"clients": 3, "round_timeout": 30}, [0, 1], 30),
    "a start-timeout": (TWO, [], {"clients": 3, "round_timeout": 30, "start_timeout": 700}, [0, 1], 700),
    "a quorum": (TWO, ALL[2:], {"clients": 3, "start_clients": 2}, [0, 1], 0),
    "a quorum alone": (TWO, [], {"start_clients": 2}, [0, 1], 0),
    "min-clients": (TWO, [], {"clients": 3, "min_clients": 2, "start_timeout": 5}, [0, 1], 5),
    "a quorum of which a round draws too few": (FIVE[:3], FIVE[3:], DRAWN, [0, 1, 2, 3, 4], 20),
    "a quorum of which too many are idle": (FIVE[:3], FIVE[3:], IDLE, [0, 1, 2, 3, 4], 20),
}


@pytest.mark.parametrize("case", BEGINS)
def test_a_run_begins_with_those_that_its_operator_wants(clock, case):
    here, later, keys, roster, seconds = BEGINS[case]
    post = post_of(*here)
    clock.events[20.0] = lambda: post.members.update({one.node: one for one in later})
    federation = started(post, **keys)
    assert client_ids(federation.roster) == roster
    assert seconds <= clock.now < seconds + 2


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"clients": 3, "start_clients": 3}, "start-clients = 3, but there are 2 clients; "),
        ({"clients": 3, "min_clients": 3}, "min-clients = 3, but there are 2 clients; "),
        (
            {"start_clients": 2, "min_clients": 2, "fraction": 0.5},
            "min-clients = 2, but there are 2 clients, of whom a ",
        ),
    ],
)
def test_too_few_clients_end_the_start_in_time_and_the_refused_are_named(clock, refusal, keys, said):
    post = post_of(*TWO, member(2, node=7), answers={7: without_data})
    line = refusal(FederationError, started, post, start_timeout=5, **keys)
    assert line.startswith(said)
    assert line.endswith('; node 7 says: "no data"')
    assert 5 <= clock.now < 7


def test_a_quorum_does_not_wait_for_who_is_silent(clock):
    federation = started(post_of(*ALL, answers={98: never}), start_clients=2)
    assert (clock.now, client_ids(federation.roster), federation.notes()) == (0, [0, 1], [])
    assert federation.exchange.busy() == {98}


def test_who_is_missing_is_said_again_and_again(clock, caplog):
    caplog.set_level("INFO")
    federation = started(post_of(*honest(9)[:5]), start_timeout=100, clients=9)
    assert client_ids(federation.roster) == [0, 1, 2, 3, 4]
    missing = "5 of 9 clients are here; missing: client 5, 6, 7, 8"
    lines = [line for line in caplog.messages if "missing" in line]
    left = [int(re.fullmatch(rf"waiting for nodes: {missing}; (\d+) s left", line)[1]) for line in lines[:-1]]
    assert left == pytest.approx([70, 40, 10], abs=1)
    assert lines[-1] == f"waited 100 s for nodes: {missing}"


# --- in a simulation -----------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"clients": 2, "start_clients": 1}, {"clients": 3, "start_clients": 1}])
def test_in_a_simulation_the_nodes_say_how_many_there_are_and_all_are_heard(clock, keys):
    """Whatever the quorum: its bits do not depend on who answers first."""
    post = post_of(*honest(3), engine="simulation")
    replies, looks = [], count()

    def one_by_one(numbers):
        replies.extend(Post.pull_messages(post, numbers))
        return [replies.pop()] if replies and next(looks) % 2 else []

    post.pull_messages = one_by_one
    assert client_ids(started(post, **keys).roster) == [0, 1, 2]


def test_in_a_simulation_nodes_are_waited_for_until_there_are_as_many_as_they_say(clock):
    post, looks = post_of(*honest(3), engine="simulation"), count(1)
    post.get_node_ids = lambda: list(post.members)[: next(looks)]
    assert client_ids(started(post).roster) == [0, 1, 2]


def test_a_simulation_hears_all_nodes_before_it_says_that_none_can_take_part(clock):
    """Client 0 says at once that it cannot; the others take their time."""
    late = []
    post = post_of(*honest(3), engine="simulation", answers={100: without_data, 99: late.append, 98: late.append})
    clock.events[5.0] = lambda: post._replies.extend(Post.register(post, message) for message in late)
    assert client_ids(started(post).roster) == [1, 2]


def test_in_a_simulation_who_cannot_take_part_is_left_out_where_no_number_is_given(clock, refusal):
    """With a number each client is wanted, and the first that fails ends the run before round 1. A client that fails
    alone ends it, too: the mistake is everybody's."""
    post = post_of(*honest(2), engine="simulation", answers={99: fails("client 1, no data")})
    assert refusal(FederationError, started, post, clients=2) == "client 1, no data"
    federation = started(post)
    assert (clock.now, client_ids(federation.roster)) == (0, [0])
    assert federation.notes() == [Failure(-1, REGISTRATION, "client 1, no data", 99)]
    assert federation.notes() == []
    said = refusal(FederationError, started, post, min_clients=2)
    assert said == "min-clients = 2, but there are 1 clients; client 1, no data"
    del post.members[100]
    assert refusal(FederationError, started, post) == "client 1, no data"


def test_in_a_simulation_who_does_not_answer_in_time_or_has_anothers_number_is_left_out(clock):
    post = post_of(*honest(2), member(1, node=7), member(2, node=6), engine="simulation", answers={6: never})
    federation = started(post)
    assert [failure.reason for failure in federation.welcome(1)] == [
        "partition-id 1 is claimed by two nodes, 7 and 99",
        "node 6: no answer yet: it is loading its data, or has to be started again if its log says nothing new",
    ]
    assert [(one.client_id, one.node) for one in federation.roster] == [(0, 100), (1, 7)]
    assert federation.welcome(1) == []
    assert len(post.pushed) == 4


# --- who is refused ------------------------------------------------------------------------------


def replying(content, **stamp):
    """Return what answers with these records, in a reply with another stamp."""

    def reply(message):
        answer = Message(RecordDict(content), reply_to=message)
        answer.metadata.__dict__.update(stamp)
        return answer

    return reply


STRANGER = member(7, node=5)
LIARS = {  # a node, what it answers, and why it is refused
    "fields missing": (
        STRANGER,
        replying({"member": ConfigRecord({"client_id": 1})}),
        "node 5: not a registration reply",
    ),
    "nonsense": (STRANGER, replying({}), "node 5: not a registration reply"),
    "an error in another's name": (STRANGER, fails("client 0 (mlp): broke"), 'node 5 says: "client 0 (mlp): broke"'),
    "another's name": (STRANGER, replying({}, _src_node_id=100), "node 5: a reply with forged metadata"),
    "another's number": (member(1, node=999), None, "partition-id 1 is claimed by two nodes, 99 and 999"),
}


@pytest.mark.parametrize("liar", LIARS)
@pytest.mark.parametrize("keys", [{"start_clients": 3}, {"clients": 3}])
def test_a_bad_registration_costs_the_others_nothing_and_is_named(clock, caplog, refusal, liar, keys):
    one, answer, reason = LIARS[liar]
    answers = {one.node: answer} if answer else {}
    federation = started(post_of(*honest(3), one, answers=answers), **keys)
    assert (clock.now, [each.node for each in federation.roster]) == (0, [100, 99, 98])
    [failure] = federation.notes()
    assert (failure.node, failure.client_id) == (one.node, -1)
    assert failure.reason.startswith(reason)
    assert f"not taken in: {failure.reason}" in caplog.messages
    simulated = post_of(*honest(3), one, engine="simulation", answers=answers)
    assert reason.partition(": ")[2].strip('"') in refusal(FederationError, started, simulated, clients=4)


@pytest.mark.parametrize("cause", ["it was restarted", "the number is free", "it could not be reached for a moment"])
def test_a_refused_node_is_asked_again(clock, cause):
    """After a restart; and after a while: the one that held its number, its own old process say, may be gone."""
    answers = {"it was restarted": without_data, "it could not be reached for a moment": unavailable}
    post = post_of(*honest(2), member(1, node=999), answers={999: answers[cause]} if cause in answers else {})
    since = dict.fromkeys(post.members, "noon")
    if cause in answers:
        del since[99]
    post.get_nodes = lambda: [SimpleNamespace(node_id=node, last_activated_at=at) for node, at in since.items()]

    def later():
        post.register = lambda message: Post.register(post, message)
        since.pop(99, None)
        if cause == "it was restarted":
            since[999] = "one"

    clock.events[15.0] = later
    federation = started(post, clients=3, start_clients=2 if cause in answers else 0, start_timeout=30)
    assert [one.node for one in federation.roster] == [100, 999]
    assert federation.notes() == []
    assert clock.now < 15 + registration.RETRY or cause == "the number is free"


def test_a_node_that_says_that_it_is_not_there_is_named_once(clock, caplog):
    post = post_of(*honest(3), answers={98: unavailable})
    federation = started(post, clients=3, start_timeout=60)
    assert client_ids(federation.roster) == [0, 1]
    assert asked(post, 98) == 60 // registration.RETRY
    [failure] = federation.notes()
    assert sum(failure.reason in line for line in caplog.messages) == 1


@pytest.mark.parametrize("odd", [0, 1, 2, 3])
def test_who_does_not_fit_the_first_client_is_refused_by_name(clock, caplog, odd):
    """Client 0 is the first. Where it fits nobody the others are refused; node-keys keeps strangers out."""
    classes = {number: 3 if number == odd else 2 for number in range(4)}
    members = [member(number, clients=4, node=number + 1, classes=classes[number]) for number in range(4)]
    federation = started(post_of(*members), same_classes, clients=4, start_timeout=30)
    here = [number for number in range(4) if classes[number] == classes[0]]
    assert client_ids(federation.roster) == here
    failures = federation.notes()
    assert [failure.node - 1 for failure in failures] == [number for number in range(4) if number not in here]
    for failure in failures:
        assert failure.reason.startswith(f"client {failure.node - 1} (mlp): does not fit the first client: ")
        assert caplog.messages.count(f"not taken in: {failure.reason}") == 1


# --- keys ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public():
    """Four public keys."""
    return [ec.generate_private_key(ec.SECP384R1()).public_key() for _ in range(4)]


def ssh(key):
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def pem(key):
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def keyed(tmp_path, public):
    """Return a Grid whose nodes have keys, and a list with the first three of these for clients 0 to 2."""
    path = tmp_path / "node-keys.toml"
    path.write_bytes(write_node_keys({number: ssh(key) for number, key in enumerate(public[:3])}))

    def build(*members, keys=(0, 1, 2), answers=None):
        post = post_of(*members, answers=answers)
        pems = {node: pem(public[key]) for node, key in zip(post.members, keys, strict=True)}
        post.get_nodes = lambda: [
            SimpleNamespace(node_id=node, last_activated_at="noon", public_key=pems.get(node, b"none"))
            for node in post.members
        ]
        return post, str(path)

    return build


KEYED = [member(0, node=5), member(1, node=6), member(2, node=7)]


@pytest.mark.parametrize("keys", [{}, {"clients": 3}], ids=["list", "list and number"])
def test_a_node_is_taken_in_only_as_the_client_that_its_key_is_listed_for(clock, keyed, keys):
    """Client 2's node claims client 1's number before client 1 is asked, and a stranger claims client 2's."""
    post, path = keyed(member(1, node=1), member(0, node=5), member(1, node=6), member(2, node=7), keys=[2, 0, 1, 3])
    federation = started(post, node_keys=path, **keys)
    assert [(one.client_id, one.node) for one in federation.roster] == [(0, 5), (1, 6)]
    assert clock.now == 0  # client 2 is known to be the one that lies: nobody waits for it
    liar, stranger = federation.notes()
    assert (liar.client_id, liar.node, stranger.client_id, stranger.node) == (2, 1, -1, 7)
    assert "node-keys" in liar.reason
    assert "node-keys" in stranger.reason
    assert 7 not in {message.metadata.dst_node_id for message in post.pushed}


@pytest.mark.parametrize(
    ("engine", "listed", "keys", "said"),
    [
        ("deployment", False, {}, "start-clients"),  # lest one that is alone at first, and says so, begins by itself
        ("deployment", True, {"clients": 4}, "clients = 4"),
        ("deployment", True, {"start_clients": 4}, "clients = 4"),
        ("simulation", True, {}, "node-keys"),
    ],
)
def test_numbers_and_lists_that_cannot_be_are_refused_at_once(clock, keyed, refusal, engine, listed, keys, said):
    post, path = keyed(*honest(3))
    post.engine = engine
    assert said in refusal(ConfigError, started, post, **keys, **({"node_keys": path} if listed else {}))
    assert (clock.now, post.pushed) == (0, [])


def test_a_node_with_a_key_gives_up_no_other_clients_place(clock, keyed):
    """Client 2's node says as client 1 that it cannot take part; client 1 comes a little later, and is waited for."""
    post, path = keyed(*KEYED, answers={7: fails("client 1, client registration: no data")})
    late = post.members.pop(6)
    clock.events[20.0] = lambda: post.members.update({6: late})
    federation = started(post, node_keys=path, start_timeout=60)
    assert client_ids(federation.roster) == [0, 1]
    assert 20 <= clock.now < 21


@pytest.mark.parametrize("key", [0, 3])
def test_who_joins_late_is_held_against_the_list_too(clock, keyed, key):
    post, path = keyed(*KEYED, keys=[0, 1, key])
    late = post.members.pop(7)
    federation = started(post, node_keys=path, clients=2)
    post.members[7] = late
    [failure] = federation.welcome(1) or federation.welcome(1)
    assert "node-keys" in failure.reason
    assert client_ids(federation.roster) == [0, 1]


def test_more_keys_may_be_listed_than_the_run_has_clients(clock, keyed):
    post, path = keyed(member(0), keys=[0])
    assert client_ids(started(post, node_keys=path, clients=1).roster) == [0]


@pytest.mark.parametrize("listed", [False, True])
def test_who_is_slow_to_answer_is_waited_for(clock, keyed, listed):
    """The first has answered at once, and does not decide how many there are. The others are named as silent after a
    minute, and have not said that they cannot take part."""
    waiting = []
    liar = member(0, node=5, clients=10**6)
    post, path = keyed(liar, *KEYED[1:], answers=dict.fromkeys((6, 7), waiting.append))
    clock.events[100.0] = lambda: post._replies.extend(Post.register(post, message) for message in waiting)
    federation = started(post, **({"node_keys": path} if listed else {"clients": 3}))
    assert client_ids(federation.roster) == [0, 1, 2]
    assert 100 <= clock.now < 101
    assert federation.notes() == []


def test_a_node_without_a_key_is_no_client_of_the_list(tmp_path, public):
    (tmp_path / "list").write_bytes(write_node_keys({4: ssh(public[0])}))
    listed = NodeKeys(tmp_path / "list")
    assert [listed.number(key) for key in (b"", b"no key", ssh(public[0]).encode(), pem(public[0]))] == [-1, -1, -1, 4]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, ""),
        ("", ""),
        ("0 = ", ""),
        ("first = 'KEY'", "'first'"),
        ("-1 = 'KEY'", "'-1'"),
        ("0 = 'ecdsa'", "client 0"),
        ("0 = 3", "client 0"),
        ("0 = 'KEY'\n1 = 'KEY comment'", "client 1"),
        ("0 = 'KEY'\n00 = 'OTHER'", "'00'"),
    ],
)
def test_a_list_that_is_none_is_refused_in_one_line(tmp_path, public, refusal, text, named):
    path = tmp_path / "list"
    if text is not None:
        path.write_text(text.replace("KEY", ssh(public[0])).replace("OTHER", ssh(public[1])))
    line = refusal(ConfigError, NodeKeys, path)
    assert line.startswith(f"{path}: ")
    assert named in line


# --- who comes later -----------------------------------------------------------------------------


def running(*members, answers=None, **keys):
    """Return an assembled deployment of two clients, and what happens to it."""
    post = post_of(*honest(2), *members, answers=answers)

    def pull(numbers):
        ready = [reply for reply in post._replies if reply and reply.metadata.reply_to_message_id in numbers]
        post._replies = [reply for reply in post._replies if reply not in ready]
        return ready

    post.pull_messages = pull
    late = {one.node: post.members.pop(one.node) for one in members}
    since = {}
    post.get_nodes = lambda: [
        SimpleNamespace(node_id=node, last_activated_at=since.get(node, "noon")) for node in post.members
    ]
    federation = started(post, **{"clients": 3, "start_clients": 2} | keys)
    post.members |= late
    return federation, post, since


def train(federation):
    """Send every client a message."""
    return federation.ask()


def asked(post, node):
    return sum(message.metadata.dst_node_id == node for message in post.pushed)


def test_a_node_that_has_restarted_is_asked_again_and_says_what_it_still_has(clock):
    """Here the public samples of client 0, but not the model that it had trained until round 1."""
    federation, post, since = running()
    train(federation)
    assert federation.roster.trained == {0: 1, 1: 1}
    called = len(post.pushed)
    since[99], post.members[99] = "one", member(1, round=0, holds=[0])
    said = "client 1 (mlp): joins without its state, but it has trained until round 1: see state-dir"
    assert federation.welcome(1) == [Failure(1, REGISTRATION, said, 99)]
    assert federation.roster.of(99).holds == (0,)
    assert federation.welcome(1) == []
    assert [message.metadata.dst_node_id for message in post.pushed[called:]] == [99]


def test_a_node_that_dies_when_it_is_asked_again_is_no_client_any_more(clock):
    answers = {}
    federation, _, since = running(answers=answers)
    since[99], answers[99] = "one", unavailable
    [failure] = federation.welcome(1)
    assert (failure.node, "Node Unavailable" in failure.reason) == (99, True)
    assert client_ids(federation.roster) == [0]


@pytest.mark.parametrize(("newest", "left"), [((4, 4), []), ((4, 0), [1]), ((0, 3), [0]), ((0, 0), None)])
def test_a_run_that_is_gone_on_with_names_clients_without_their_state(clock, refusal, newest, left):
    post = post_of(*(member(client_id, round=round) for client_id, round in enumerate(newest)))
    federation = Federation(post, RunConfig(clients=2), Origin(12, 4, {0: 4, 1: 3}))
    if left is None:
        assert refusal(FederationError, federation.assemble).startswith("no client has its state of run 12")
    else:
        federation.assemble()
        assert [failure.client_id for failure in federation.notes()] == left
    told = [dict(message.content.config_records["config"]) for message in post.pushed]
    assert told == [{"run": "12", "server-round": 4}] * 2


def test_a_newcomer_that_is_silent_costs_the_others_nothing_and_is_named_once(clock, caplog):
    """It is asked once, and taken in when it has answered; meanwhile it is no client, and is sent nothing else."""
    unanswered = []
    federation, post, _ = running(member(2, node=7), answers={7: unanswered.append})
    failures = []
    for _ in range(8):
        failures += federation.welcome(1)
        assert client_ids(federation.roster) == [0, 1]
        assert train(federation).failures == []
        clock.now += 20
    assert clock.now == 160
    assert asked(post, 7) == len(unanswered) == 1
    [failure] = failures
    assert (failure.client_id, failure.stage, failure.node) == (-1, "client registration", 7)
    post._replies.append(Post.register(post, unanswered[0]))
    assert federation.welcome(1) == []
    assert client_ids(federation.roster) == [0, 1, 2]


@pytest.mark.parametrize("when", [1, 50])
@pytest.mark.parametrize("what", ["leaves", "restarts", "is silent"])
def test_it_is_known_after_a_long_round_which_nodes_have_left_or_restarted_in_it(clock, what, when):
    """Meanwhile the server looks for nodes again and again, and asks those that have restarted who they are."""
    federation, post, since = running(round_timeout=100)
    federation.exchange.poll = 1.0
    post.answers = {99: lambda message: None}  # to training; it does say who it is
    if what != "is silent":
        clock.events[when] = lambda: post.members.pop(99) if what == "leaves" else since.update({99: "one"})
    result = train(federation)
    assert [failure.node for failure in result.failures] == [99]
    assert federation.has_lost(result.failures) is (what != "is silent")
    post.answers = {}
    if what == "restarts":  # it has said who it is: what it had begun is lost, and not waited for
        assert clock.now < when + 15
        federation.welcome(1)
        assert train(federation).failures == []


@pytest.mark.parametrize("keys", [{"fraction": 0.5}, {"nonparticipating_fraction": 0.5}], ids=["drawn", "idle"])
def test_a_wait_is_for_those_who_are_drawn(clock, keys):
    """They are busy; that another one is not helps nobody."""
    post = post_of(*honest(2))
    federation = started(post, clients=2, round_timeout=10.0, start_timeout=60.0, **keys)
    federation.exchange.poll = 1.0
    [drawn] = federation.draw(1)
    pull, done = post.pull_messages, []
    post.pull_messages = lambda wanted: pull(wanted) if done else []
    federation.ask([drawn])
    began = clock.now
    clock.events[began + 30] = lambda: done.append(True)
    federation.welcome(1)
    assert federation.draw(1) == [drawn]
    assert 29 <= clock.now - began < 32


def test_who_never_trains_is_the_same_whoever_is_here(clock):
    """Of five clients by number, two never train; where all are here, the same as where three are."""
    post = post_of(*honest(5))
    late = {node: post.members.pop(node) for node in list(post.members)[3:]}
    federation = started(post, clients=5, start_clients=3, nonparticipating_fraction=0.4)
    before = set(client_ids(federation.draw(1)))
    post.members |= late
    federation.welcome(1)
    federation.welcome(2)
    assert len(federation.roster) == 5
    assert len(federation.draw(3)) == 3
    assert before == set(client_ids(federation.draw(3))) & {0, 1, 2}


@pytest.mark.parametrize(("back", "seconds"), [(50.0, 50), (1000.0, 70)])
def test_where_all_clients_are_away_between_two_rounds_they_are_waited_for(clock, caplog, back, seconds):
    """As long as at the start."""
    federation, post, _ = running(start_timeout=70)
    away, post.members = post.members, {}
    clock.events[back] = lambda: post.members.update(away)
    noticed = federation.welcome(1)
    assert [failure.reason for failure in noticed] == [f"client {k} (mlp): its node has left" for k in (0, 1)]
    assert client_ids(federation.roster) == ([0, 1] if seconds == 50 else [])
    assert seconds <= clock.now < seconds + 1
    assert [line for line in caplog.messages if "min-clients = 1" in line and "70 s" in line]


def test_who_leaves_while_others_are_waited_for_is_not_counted_and_its_number_is_free(clock):
    """Client 1 leaves during the wait, and comes back as another node, which was refused while the old one was here."""
    federation, post, _ = running(member(2, node=7))
    federation.welcome(1)
    assert client_ids(federation.roster) == [0, 1, 2]
    federation.registration.config = federation.config = federation.config.with_values({"min-clients": 3})
    third = post.members.pop(7)
    clock.events[5.0] = lambda: post.members.update({8: member(1, node=8)})
    clock.events[10.0] = lambda: post.members.pop(99)
    clock.events[60.0] = lambda: post.members.update({7: third})
    federation.welcome(1)
    assert [(one.client_id, one.node) for one in federation.roster] == [(0, 100), (1, 8), (2, 7)]
    assert 60 <= clock.now < 61


def test_strangers_that_come_while_others_are_waited_for_are_named_up_to_a_number(clock):
    federation, post, _ = running(min_clients=2, start_timeout=100)
    del post.members[99]
    for number in range(50):
        stranger = member(40, node=1000 + number)
        clock.events[clock.now + 1 + number] = lambda stranger=stranger: post.members.update({stranger.node: stranger})
    lines = [failure.reason for failure in federation.welcome(1)]
    assert len(lines) == 1 + registration.MAX_NAMED + 1
    assert sum("client 40" in line for line in lines) == 20
    assert sum("30 more nodes" in line for line in lines) == 1


def test_a_newcomer_that_leaves_is_forgotten_and_asked_anew_where_it_returns(clock):
    federation, post, since = running(member(2, node=7), answers={7: lambda message: None})
    federation.welcome(1)
    late = post.members.pop(7)
    assert federation.welcome(1) == []
    assert federation.exchange.busy() == set()
    post.members[7], since[7] = late, "one"
    federation.welcome(1)
    assert asked(post, 7) == 2
    since[7] = "two"  # a restart that nobody has seen it leave for
    federation.welcome(1)
    assert asked(post, 7) == 3


@pytest.mark.parametrize("least", [1, 2])
def test_a_client_that_restarts_and_is_silent_is_sent_nothing_else_and_stays_a_client(clock, least):
    """It loads its data. Where all are wanted, they wait for it and do not train in vain."""
    answers, unanswered = {}, []
    federation, post, since = running(answers=answers, min_clients=least)
    since[99], answers[99] = "one", unanswered.append
    clock.events[120.0] = lambda: post._replies.append(Post.register(post, unanswered[0]))
    assert [failure.node for failure in federation.welcome(1)] == [99] * (least - 1)  # named after a minute
    if least == 1:
        [failure] = train(federation).failures
        assert failure.reason.startswith("client 1 (mlp): still busy")
        assert clock.now == 0
        clock.sleep(120)
        assert federation.welcome(1) == []
    assert 120 <= clock.now < 121
    assert train(federation).failures == []
    assert asked(post, 99) == 3  # at the start, at its restart, to train


def test_who_comes_while_a_round_is_running_is_asked_meanwhile_and_takes_part_in_the_next(clock):
    """Looks are some seconds apart but the one before messages are sent; a refused node is asked again after a time."""
    federation, post, _ = running(round_timeout=30.0)
    federation.exchange.poll = 1.0
    post.answers[99] = never
    looks = []
    known = post.get_nodes
    post.get_nodes = lambda: looks.append(clock.now) or known()
    clock.events[12.0] = lambda: post.members.update({7: member(2, node=7), 8: member(0, node=8)})
    train(federation)
    assert all(later - earlier >= 5 for earlier, later in pairwise(looks[1:]))
    assert len(looks) > 3
    assert asked(post, 7) == asked(post, 8) == 1
    [failure] = federation.welcome(1)
    assert "100 and 8" in failure.reason
    assert client_ids(federation.roster) == [0, 1, 2]
    clock.now += registration.RETRY
    assert federation.welcome(1) == []
    assert asked(post, 8) == 2


# --- versions ------------------------------------------------------------------------------------


def test_clients_of_other_versions_are_named_and_taken_in(clock, caplog):
    here = installed()
    members = [member(0, **here), member(1, **here | {"torch": "1.0"}), member(2, **here | {"hetfl": "0"})]
    federation = started(post_of(*members), clients=4, start_clients=3)
    assert client_ids(federation.roster) == [0, 1, 2]
    assert federation.notes() == []
    [line] = caplog.messages
    assert line.endswith(": client 1, 2")
    caplog.clear()
    federation.grid.members[7] = member(3, node=7, **here | {"torch": "2"})
    assert federation.welcome(1) == federation.welcome(1) == []
    [line] = caplog.messages
    assert line.endswith(": client 3")


# --- strangers beside the clients ----------------------------------------------------------------


def test_numbers_that_no_client_has_are_refused_by_name_at_the_start_and_later(clock):
    wrong = [member(100 + k, clients=500, node=900 + k) for k in range(20)]
    federation = started(post_of(*wrong, *honest(3)), same_classes, clients=3)
    assert client_ids(federation.roster) == [0, 1, 2]
    assert [failure.node for failure in federation.notes()] == [one.node for one in wrong]
    federation.grid.members = {one.node: one for one in honest(3)} | {7: member(3, node=7, clients=500)}
    [failure] = federation.welcome(1)
    assert failure.reason.startswith("node 7: says that it is client 3")
    assert clock.now == 0


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 3])
def test_who_joins_must_fit_those_with_whom_the_run_began_also_when_none_of_them_is_here(clock, clients):
    """Another node that does not fit is no federation of its own, and those with whom it began are welcome again."""
    post = post_of(*honest(clients))
    federation = started(post, same_classes, clients=clients)
    began, post.members = post.members, {7: member(0, node=7, classes=3)}
    federation.registration.config = federation.config.with_values({"start-timeout": 1})
    *left, failure = federation.welcome(1, same_classes)
    assert len(left) == clients
    assert "has 3" in failure.reason
    assert client_ids(federation.roster) == []
    post.members = began
    assert federation.welcome(1, same_classes) == []
    assert client_ids(federation.roster) == list(range(clients))


def test_who_comes_back_with_more_public_samples_than_it_has_shared_is_welcome(clock):
    """Its data have grown, and it is sent the rows that it has shared."""
    post = post_of(*(member(client_id, public=4) for client_id in range(2)))
    federation = started(post, clients=2)
    federation.roster.public_samples = {k: {"inputs": np.zeros((4, 2), np.float32)} for k in range(2)}
    post.members = {100: post.members[100], 7: member(1, node=7, train=300, public=300)}
    [left] = federation.welcome(1)
    assert left.node == 99
    assert client_ids(federation.roster) == [0, 1]


def test_a_node_is_one_client_for_a_whole_run(clock):
    """It leaves, and comes back with a number that is free; its own is free for it and for others."""
    post = post_of(*honest(2))
    federation = started(post, clients=3, start_clients=2)
    del post.members[99]
    assert [failure.client_id for failure in federation.welcome(1)] == [1]
    post.members[99] = member(2, node=99)
    [failure] = federation.welcome(1)
    assert failure.reason.startswith("node 99: says that it is client 2")
    post.members[99], post.members[7] = member(1, node=99), member(2, node=7)
    clock.now += registration.RETRY
    assert federation.welcome(1) == []
    assert client_ids(federation.roster) == [0, 1, 2]
