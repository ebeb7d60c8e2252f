"""Names of classes and columns: compared wherever sizes are, and shown to others only where they may be."""

import json
import logging
from hashlib import sha256

import pytest
from fixtures.data.columns import write_csv
from fixtures.federations.grids import Meddled
from fixtures.federations.members import member
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.task_identity import TaskIdentity

from hetfl_flwr import client_app
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, DataError, FederationError
from hetfl_flwr.methods import build_strategy, names
from hetfl_flwr.node.node import Node
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, MEMBER, METRICS, ROUND
from hetfl_flwr.wire.naming import MAX_NAMES, Naming, data_label

CLASSES = ("benign", "malignant", "unsure")
COLUMNS = ("bmi", "bp")


def named(client_id, classes=CLASSES, columns=COLUMNS, *, share=True, **fields):
    own, inputs = Naming.of(classes, share=share), Naming.of(columns, share=share)
    names = {"class_digests": own.digests, "class_names": own.shown}
    names |= {"input_digests": inputs.digests, "input_names": inputs.shown}
    return member(client_id, **names, classes=len(classes), shape=(len(columns),), **fields)


def strategy(text):
    name, _, option = text.partition(" ")
    key, _, value = option.partition("=")
    return build_strategy(RunConfig.from_flat({"algorithm": name, **({f"{name}.{key}": value} if key else {})}))


ALL = [*names(), "fedhenn mode=homogeneous", "fml share=body", "lgfedavg mode=body"]
UNLIKE_CLASSES = {"fedrep", "fedhenn", "local", "fml share=body", "lgfedavg mode=body"}
UNLIKE_COLUMNS = {"fd", "fedgh", "fedhe", "fedproto", "fedtgp", "chfl", "lgfedavg", "local"}


@pytest.mark.parametrize("algorithm", ALL)
@pytest.mark.parametrize("kind", ["class", "column"])
def test_names_are_compared_where_sizes_are(refusal, algorithm, kind):
    unlike = {"class": ("benign", "Malignant", "unsure")} if kind == "class" else {"column": ("weight_kg", "aaa")}
    other = named(1, unlike.get("class", CLASSES), unlike.get("column", COLUMNS), public=9)
    roster = Roster([named(0, public=9), other])
    if algorithm in (UNLIKE_CLASSES if kind == "class" else UNLIKE_COLUMNS):
        strategy(algorithm).check(roster)
        return
    said = refusal(FederationError, strategy(algorithm).check, roster)
    ours, theirs = ("'malignant'", "'Malignant'") if kind == "class" else ("'bmi'", "'weight_kg'")
    assert (ours in said, theirs in said) == (True, True)


@pytest.mark.parametrize("algorithm", ALL)
def test_words_of_tokens_are_compared_where_columns_are(refusal, algorithm):
    texts = {"shape": (4,), "vocabulary": 9, "class_digests": Naming.of("abc", share=False).digests, "public": 9}
    roster = Roster([member(0, **texts, input_digests=("ab",)), member(1, **texts, input_digests=("cd",))])
    if algorithm in UNLIKE_COLUMNS:
        strategy(algorithm).check(roster)
        return
    assert "'hashed:9'" in refusal(FederationError, strategy(algorithm).check, roster)


MOODS = "said,sick\n" + "".join(f"good day {row % 3},{row % 2}\n" for row in range(40))


@pytest.mark.parametrize(("vocabulary", "digests"), [("shared:9", [1, 1, 2]), ("hashed:9", [0, 0, 0])])
def test_a_node_tells_whether_its_words_are_those_of_others_and_none_of_them(
    ask, tmp_path, caplog, vocabulary, digests
):
    """Two nodes have the same texts, the third has a word more, and of all words there is one digest."""
    texts = {"one": MOODS, "two": MOODS, "three": MOODS + "Jane Doe,1\n"}
    keys = {"text-column": "said", "model": "bag", "share-names": True}
    asked = [
        Member.from_reply(ask({"vocabulary": vocabulary}, dataset=write_csv(tmp_path / name, train=lines), **keys))
        for name, lines in texts.items()
    ]
    told = [member.input_digests for member in asked]
    assert [len(set(told[: end + 1]) - {()}) for end in range(3)] == digests
    assert all(len(digest) == (vocabulary == "shared:9") for digest in told)
    assert [member.input_names for member in asked] == [()] * 3


def test_names_that_stay_at_home_are_compared_all_the_same(refusal):
    roster = Roster([named(0, share=False), named(1, ("benign", "Jane Doe", "unsure"), share=False)])
    said = refusal(FederationError, lambda: roster.classes)
    assert ("client 0 has classes 1 " in said, "Jane" in said) == (True, False)
    assert Roster([named(0, share=False), named(1)]).classes == 3


def test_many_names_have_one_digest_and_are_not_shown(refusal):
    """4,097 names: their digest is that of all, a NUL between two."""
    names = [f"c{number}" for number in range(MAX_NAMES + 1)]
    many = Naming.of(names, share=True)
    assert many == Naming((sha256("\0".join(names).encode()).hexdigest()[:16],), ())
    members = [named(0, names), named(1, [*names[:-1], "other"])]
    assert "c0" not in refusal(FederationError, lambda: Roster(members).classes)


def test_what_a_data_set_is_called():
    assert data_label("/home/me/ward", {}, share=False) == "/home/me/ward"  # the run config's own word
    assert data_label("digits,rotated-mnist", {"dataset": "x"}, share=False) == "digits,rotated-mnist"
    assert data_label("/home/me/ward", {"dataset": "x"}, share=False) == "own"
    assert data_label("/home/me/ward", {"dataset": "x"}, share=True) == "ward"


SICK = "age,sick\n" + "".join(f"{row}.5,{'Jane Doe HIV+' if row % 2 else 'no'}\n" for row in range(40))


@pytest.fixture
def ask(monkeypatch, make_config):
    """Register one node of a deployment, or ask it something else; it has a data set of its own. Return its answer."""

    def asked(keys=None, *, deployed=True, kind=MessageType.QUERY, content=None, **node_config):
        if deployed:
            monkeypatch.setattr(TaskIdentity, "_node_id", 5)
        own = {"partition-id": 0, "num-partitions": 2, "partition": "all", "label-column": "sick", "model": "mlp"}
        flat = make_config(algorithm="fedhe").to_flat() | {"dataset": "", **(keys or {})}
        message = Message(content or RecordDict(), 5, kind)
        message.metadata.__dict__["_message_id"] = "1"
        return client_app.app(message, Context(7, 5, own | node_config, RecordDict(), flat))

    return asked


def test_a_deployed_node_shows_digests_and_its_log_the_names_unless_it_may_show_them(ask, tmp_path, caplog):
    """Names of the catalogue are no secret."""
    folder = write_csv(tmp_path / "ward", train=SICK)
    with caplog.at_level(logging.INFO, "flwr"):
        told = Member.from_reply(ask(dataset=folder))
    assert (told.class_names, told.input_names, told.dataset) == ((), (), "own")
    assert told.class_digests == tuple(sha256(name).hexdigest()[:16] for name in (b"Jane Doe HIV+", b"no"))
    assert len(told.input_digests) == 1
    assert "Jane" not in repr(told.values())
    assert "classes: 0 'Jane Doe HIV+', 1 'no'" in caplog.text
    shown = Member.from_reply(ask(dataset=folder, **{"share-names": True}))
    assert (shown.class_names, shown.input_names, shown.dataset) == (("Jane Doe HIV+", "no"), ("age",), "ward")
    known = Member.from_reply(ask(dataset="breast-cancer"))
    assert (known.class_names, known.dataset) == (("malignant", "benign"), "breast-cancer")
    assert known.input_names[0] == "mean radius"


@pytest.mark.parametrize(("deployed", "share", "told"), [(True, {}, False), (True, True, True), (False, {}, True)])
def test_how_well_single_classes_are_told_stays_on_a_deployed_node_unless_it_says_so(
    ask, tmp_path, deployed, share, told
):
    content = RecordDict({ARRAYS: ArrayRecord(), CONFIG: ConfigRecord({ROUND: 0})})
    keys = {"dataset": write_csv(tmp_path / "ward", train=SICK)} | ({"share-recall": share} if share else {})
    metrics = ask(deployed=deployed, kind=MessageType.EVALUATE, content=content, **keys).content[METRICS]
    assert {"accuracy", "balanced-accuracy", "macro-f1"} <= metrics.keys()
    assert bool(metrics.keys() & {"recall", "untested", "unpredicted"}) is told


def test_in_deployment_there_is_no_default_data_set(ask, caplog):
    assert ask().error.reason.endswith(f": ConfigError: {ConfigError.outward}; see this node's log")
    assert "--node-config" in caplog.text
    assert Member.from_reply(ask(dataset="digits")).dataset == "digits"


SPOILT = {
    "a label": ({"train": SICK, "test": "age,sick\n1,John Roe\n"}, {}),
    "one label": ({"train": SICK.replace(",no", ",Jane Doe HIV+")}, {}),
    "no header": ({"train": "54,Jane Doe\n7,John Roe\n"}, {}),
    "declared": ({"train": SICK}, {"classes": "no,yes"}),
    "a broken row": ({"train": SICK + "1,2,3,Jane Doe\n"}, {}),
    "no folder": (None, {}),
}


@pytest.mark.parametrize("case", SPOILT)
def test_of_an_error_its_type_and_a_fixed_sentence_leave_a_deployed_node(ask, tmp_path, caplog, case):
    splits, keys = SPOILT[case]
    folder = str(tmp_path / "ward") if splits is None else write_csv(tmp_path / "ward", **splits)
    reason = ask(dataset=folder, **keys).error.reason
    assert reason.endswith(f": DataError: {DataError.outward}; see this node's log")
    assert str(tmp_path) in caplog.text


class Unsaid(Exception):
    def __str__(self):
        raise ValueError("Jane Doe")


def failing(monkeypatch, error):
    def fail(context, before):
        raise error

    monkeypatch.setattr(Node, "from_context", fail)


@pytest.mark.parametrize("deployed", [True, False])
def test_of_another_error_a_deployed_node_tells_the_type_alone(ask, monkeypatch, caplog, deployed):
    failing(monkeypatch, KeyError("Jane Doe"))
    reason = ask(deployed=deployed, dataset="digits").error.reason
    assert ("KeyError" in reason, "Jane Doe" in reason, "Jane Doe" in caplog.text) == (True, not deployed, True)


@pytest.mark.parametrize("error", [type("Jane Doe\n/secret", (Exception,), {})("x"), Unsaid()])
def test_of_an_error_of_a_node_s_own_code_not_even_the_name_is_told(ask, monkeypatch, error):
    failing(monkeypatch, error)
    reason = ask(dataset="digits", **{"partition-id": "/data/Jane Doe"}).error.reason
    assert "an error in its code; see this node's log" in reason
    assert "on node 5" in reason
    assert not any(word in reason for word in ("Jane", "secret", "Unsaid", "\n"))


def test_flower_logs_no_traceback_of_an_error_that_is_one_line(make_config, run_federation, caplog):
    """Flower logs what the ServerApp has raised by this logger, with its traceback; other errors keep theirs."""
    with pytest.raises(FederationError) as caught:
        run_federation(make_config(algorithm="fedavg"))
    for error in (caught.value, KeyError("bug")):
        FLOWER_LOGGER.error("ServerApp raised an exception", exc_info=error)
    kept = [record.exc_info for record in caplog.records if record.msg == "ServerApp raised an exception"]
    assert [bool(info) for info in kept] == [False, True]


@pytest.mark.parametrize(
    ("clients", "others", "configured", "said"),
    [
        (3, {1: "cifar10, <b>"}, "digits", "digits"),
        (2, {1: "own"}, "digits", "digits"),
        (3, {1: "own", 2: "own"}, "digits", "own"),
        (2, {1: "own"}, "", "several"),
    ],
)
def test_a_run_is_called_by_what_most_clients_trained_on(
    make_config, run_federation, clients, others, configured, said
):
    """As the nodes of a deployment do, some call their data otherwise. Each client's own word is in clients.json."""

    def renamed(reply):
        member = reply.content.config_records.get(MEMBER) if reply.has_content() else None
        if member:
            member["dataset"] = others.get(member["client_id"], "digits")
        return reply

    config = make_config(rounds=1, clients=clients)
    grid = Meddled(config, answered=renamed)
    grid.engine = "deployment"
    folder = run_federation(config.with_values({"dataset": configured}), grid)
    assert json.loads((folder / "summary.json").read_text())["dataset"] == said
    told = json.loads((folder / "clients.json").read_text())
    assert [client["dataset"] for client in told] == [others.get(k, "digits") for k in range(clients)]
