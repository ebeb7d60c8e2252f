"""Public samples: collected once, brought to everyone, the same pool for all who hold it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.grids import Tampering
from fixtures.federations.members import member
from fixtures.federations.nodes import linear_node
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from clients.fedh2l import FedH2LClient
from clients.fedmd import FedMDClient
from hetfl_flwr.client_app import member_of
from hetfl_flwr.data import DataSpec, Samples
from hetfl_flwr.errors import FederationError, PayloadError
from hetfl_flwr.methods import build_strategy
from hetfl_flwr.node.node import Kept, Node
from hetfl_flwr.node.pool import PublicSampleStore
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.member import Sharing
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.server.sharing import SampleSharing
from hetfl_flwr.wire.codec import to_record
from hetfl_flwr.wire.messages import ARRAYS, POOL, SHARE
from hetfl_flwr.wire.samples import MAX_SHARED, PublicIndex
from simulations.engine.clients import FIRST_NODE
from simulations.engine.grid import LocalEngine

PIXELS, LABEL = 64, 8  # bytes of one digit and of its label


class Joining(LocalEngine):
    """A deployment that has its last node from the moment that one says so."""

    exchange = None  # type: ignore[assignment]
    engine = "deployment"
    joined = False

    def get_node_ids(self) -> list[int]:
        nodes = super().get_node_ids()
        return nodes if self.joined else nodes[:-1]


def sharing_in(federation: Federation, sharing: Sharing | None = None) -> SampleSharing:
    """Let clients share public samples, whatever the algorithm."""
    federation.samples = SampleSharing(federation.exchange, sharing)
    return federation.samples


def holding(federation: Federation) -> list[int]:
    """Return the clients that hold the pool."""
    return [one.client_id for one in federation.samples.holding(federation.roster)]


@pytest.fixture
def shared(make_config, make_federation):
    """Share the public samples of three clients, and return the federation and what the exchange was."""

    def share(grid: Any = None, **keys: Any) -> tuple[Federation, Any]:
        federation = make_federation(make_config(clients=3), grid)
        return federation, sharing_in(federation, Sharing(**keys)).share()

    return share


def nodes(federation: Federation) -> list[Node]:
    """The clients' nodes over the Contexts that the grid keeps for them."""
    return [Node.from_context(context) for context in federation.grid._host._clients._contexts.values()]


def test_everyone_holds_the_same_pool_of_what_clients_have_made_public(shared):
    """The server numbers its rows as the clients do. Pixels are the sender's, scaling and mean image the receiver's."""
    federation, exchange = shared()
    assert exchange.failures == []
    expected = [node.data.public.stored() for node in nodes(federation)]
    for node in nodes(federation):
        pool = node.pool
        assert list(pool.blocks) == [0, 1, 2]
        assert len(pool) == len(pool.samples) == sum(len(labels) for _, labels in expected)
        for block, (inputs, labels) in zip(pool.blocks.values(), expected, strict=True):
            assert torch.equal(block.stored()[0], inputs)
            assert torch.equal(block.stored()[1], labels)
        every = torch.arange(len(pool))
        assert torch.equal(pool.samples.batch(every)[1], torch.cat([labels for _, labels in expected]))
        others = [labels for client_id, (_, labels) in enumerate(expected) if client_id != node.client_id]
        assert torch.equal(pool.everything.labels, torch.cat([node.data.train.labels, *others]))
        assert pool.index == PublicIndex.of(federation.roster.public_samples)
    first, second, _ = nodes(federation)
    rows = torch.arange(len(second.data.public))
    assert torch.equal(first.pool.blocks[1].batch(rows)[0], second.data.public.batch(rows)[0])


@pytest.mark.slow
@given(sizes=st.dictionaries(st.integers(0, 99), st.integers(0, 5), max_size=6), data=st.data())
def test_numbers_and_places_are_those_of_a_list_of_all_rows(sizes, data):
    index = PublicIndex(dict(sorted(sizes.items())))
    rows = [(client, row) for client in sorted(sizes) for row in range(sizes[client])]
    assert len(index) == len(rows)
    numbers = np.array(data.draw(st.lists(st.sampled_from(range(len(rows)))) if rows else st.just([])), np.int64)
    places = index.places(numbers)
    assert [tuple(place) for place in places.tolist()] == [rows[number] for number in numbers]
    assert index.numbers(places.astype(np.int32)).tolist() == numbers.tolist()
    some = np.array(data.draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 6)))), np.int64).reshape(-1, 2)
    assert index.held(some).tolist() == [tuple(place) in rows for place in some.tolist()]


@pytest.mark.parametrize(("labelled", "to_clients"), [(True, True), (False, True), (True, False)])
def test_bytes_are_pixels_and_labels_up_once_and_down_to_every_other_client(shared, labelled, to_clients):
    federation, exchange = shared(labelled=labelled, to_clients=to_clients)
    assert {one.client_id: one.public for one in federation.roster} == {0: 60, 1: 60, 2: 60}  # a tenth of 599
    block = 60 * (PIXELS + LABEL * labelled)
    assert list(exchange.traffic) == [0, 1, 2]
    for traffic in exchange.traffic.values():
        assert (traffic.bytes_up, traffic.bytes_down) == (block, 2 * block * to_clients)
        assert traffic.wire_up > traffic.bytes_up
    assert all(("labels" in block) == labelled for block in federation.roster.public_samples.values())
    pools = [node.pool for node in nodes(federation)]
    assert [len(pool) for pool in pools] == ([180] * 3 if to_clients else [60] * 3)
    if not labelled:
        assert [pools[0].blocks[k].labels.any().item() for k in (0, 1, 2)] == [True, False, False]


def test_sharing_again_costs_nothing(shared):
    federation, _ = shared()
    before = dict(federation.roster.public_samples)
    again = federation.samples.share()
    assert (again.traffic, again.failures, federation.roster.public_samples) == ({}, [], before)
    assert sharing_in(federation).share().traffic == {}


def test_one_that_joins_late_gets_all_and_the_others_get_only_its_rows(make_config, make_federation):
    config = make_config(clients=3)
    grid = Joining(config, run=7)
    federation = Federation(grid, config.with_values({"start-clients": 2}), build_strategy(config))
    federation.registration.assemble()
    sharing_in(federation, Sharing()).share()
    assert list(federation.roster.public_samples) == [0, 1]
    grid.joined = True
    assert federation.registration.welcome(1) == []
    assert holding(federation) == [0, 1]
    late = federation.samples.share()
    block = 60 * (PIXELS + LABEL)
    bytes_each = {client_id: (traffic.bytes_up, traffic.bytes_down) for client_id, traffic in late.traffic.items()}
    assert bytes_each == {0: (0, block), 1: (0, block), 2: (block, 2 * block)}
    assert len({len(node.pool) for node in nodes(federation)}) == 1
    assert holding(federation) == [0, 1, 2]


def forging(config: Any, kind: str, arrays: dict[str, np.ndarray] | None, client_id: int = 1) -> Tampering:
    """Return a grid that delivers one kind of reply of one client changed."""

    def forge(reply: Message) -> Message:
        if arrays is None:
            reply.content.metric_records.clear()
        else:
            changed = {**reply.content.array_records[ARRAYS], **{k: Array(v) for k, v in arrays.items()}}
            reply.content[ARRAYS] = ArrayRecord(changed)
        return reply

    return Tampering(config, client_id, forge, kind)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            {"inputs": np.zeros((60, 1, 8, 9), np.uint8)},
            "array 'inputs' has shape (60, 1, 8, 9), expected (60, 1, 8, 8)",
        ),
        ({"inputs": np.zeros((60, 1, 8, 8), np.float32)}, "array 'inputs'"),
        ({"labels": np.full(60, 10)}, "array 'labels' has values above 9"),
        ({"labels": np.full(60, -1)}, "array 'labels' has values below 0"),
        ({"more": np.zeros(1)}, "arrays inputs, labels, more, expected inputs, labels"),
    ],
)
def test_a_client_whose_public_samples_are_wrong_is_named_and_left_out(make_config, shared, arrays, said):
    federation, exchange = shared(forging(make_config(clients=3), SHARE, arrays))
    [failure] = exchange.failures
    assert (failure.client_id, failure.stage) == (1, "sharing of public samples")
    assert failure.reason.startswith("client 1 (lenet5): ")
    assert said in failure.reason
    assert holding(federation) == list(federation.roster.public_samples) == [0, 2]


def test_a_client_that_the_pool_did_not_reach_is_left_out_until_it_does(make_config, shared):
    grid = forging(make_config(clients=3), POOL, None)
    federation, exchange = shared(grid)
    assert [failure.client_id for failure in exchange.failures] == [1]
    assert holding(federation) == [0, 2]
    grid._answered = lambda reply: reply
    assert federation.samples.share().failures == []
    assert holding(federation) == [0, 1, 2]


@pytest.mark.parametrize(
    "keys",
    [
        {"public_clipping_norm": 20.0, "public_noise_multiplier": 0.1, "noise_source": "system"},
        {"dataset": "breast-cancer", "payload_precision": "half"},
    ],
    ids=["noise", "half"],
)
def test_everyone_holds_the_rows_that_were_sent_and_sends_them_again(make_config, make_federation, keys):
    """Fresh noise would be another release of the same rows. Here the first reply of client 1 is lost."""
    config = make_config(clients=3, models="mlp", **keys)
    sent = list[dict[str, bytes]]()

    def forge(reply: Message) -> Message:
        sent.append({name: array.data for name, array in reply.content.array_records[ARRAYS].items()})
        if len(sent) == 1:
            reply.content.metric_records.clear()
        return reply

    federation = make_federation(config, Tampering(config, 1, forge, SHARE))
    assert [failure.client_id for failure in sharing_in(federation, Sharing()).share().failures] == [1]
    assert federation.samples.share().failures == []
    assert sent[0] == sent[1]
    for node in nodes(federation):
        for client_id, block in federation.roster.public_samples.items():
            np.testing.assert_equal(node.public_samples.block(client_id), dict(block))
        assert torch.equal(node.pool.shared.labels, node.data.public.labels)


@pytest.mark.parametrize("labelled", [True, False])
def test_one_that_has_lost_its_context_is_sent_its_own_rows_too(shared, labelled):
    """As they were shared: its data may have grown. Labels that nobody else has are those of its data."""
    federation, _ = shared(labelled=labelled)
    one, lost = federation.roster.of(FIRST_NODE + 1), nodes(federation)[1].pool
    context = federation.grid._host._clients._contexts[one.node]
    context.state.clear()
    context.kept = Kept(context.store, stays=True)
    federation.roster.remove(one.node)
    federation.roster.add(member_of(context))
    assert holding(federation) == [0, 2]
    traffic = federation.samples.share().traffic
    assert {one: sent.bytes_down for one, sent in traffic.items()} == {1: 180 * (PIXELS + LABEL * labelled)}
    assert holding(federation) == [0, 1, 2]
    found = nodes(federation)[1].pool
    assert torch.equal(found.samples.labels, lost.samples.labels)
    for block, before in zip(found.blocks.values(), lost.blocks.values(), strict=True):
        assert torch.equal(block.stored()[0], before.stored()[0])


def test_a_node_whose_data_have_grown_says_how_many_rows_it_has_shared(make_config, make_context):
    context = make_context(make_config(algorithm="fedmd", models="mlp"))
    shared = Node.from_context(context).own_public_samples(labelled=True)
    assert member_of(context).holds == (0,)
    context.run_config["public-fraction"] = 0.5
    assert member_of(context).public == len(shared["labels"]) < len(Node.from_context(context).data.public)


@pytest.mark.parametrize("client", [FedH2LClient, FedMDClient])
def test_a_node_whose_data_have_grown_answers_about_the_rows_that_it_has_shared(client):
    """There are as many of them, and they are others."""
    node = linear_node(np.eye(4)[:3], [0, 1, 2], np.eye(4)[:3], public=2)
    node.own_public_samples(labelled=True)
    train = node.data.train
    data = replace(node.data, train=Samples(train.arrays, train.rows.flip(0)))
    node = replace(node, data=data, public_samples=PublicSampleStore(node.store.context))
    one = client(node)
    if client is FedH2LClient:
        signal = one._signal(1)
        rows, answers = signal["indices"], signal["posteriors"]
        assert signal["accuracy"] == 1
    else:
        rows, answers = np.arange(2), one.answered(torch.arange(2)).numpy()
    assert answers.argmax(1).tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("public_samples", "said"),
    [
        (
            {"inputs.1": np.zeros((3, 5), np.float32)},
            "public samples of client 1: array 'inputs' has shape (3, 5), expected (N <=",
        ),
        (
            {"inputs.1": np.zeros((3, 2))},
            "public samples of client 1: array 'inputs' has dtype float64, expected float32",
        ),
        ({"inputs.1": np.zeros((3, 2), np.float32), "labels.1": np.zeros(2, np.int64)}, "array 'inputs' has N = 3"),
        ({"inputs.1": np.full((3, 2), np.nan, np.float32)}, "has values that are not finite"),
        ({"labels.1": np.zeros(2, np.int64)}, "expected inputs, labels"),
        ({"inputs.one": np.zeros((3, 2), np.float32)}, "array 'inputs.one', expected inputs.K and labels.K"),
        ({"rows.1": np.zeros((3, 2), np.float32)}, "array 'rows.1', expected inputs.K and labels.K"),
    ],
)
def test_a_client_refuses_rows_that_do_not_fit_its_own(refusal, public_samples, said):
    node = linear_node([[1.0, 0.0]], [0], [[1.0, 0.0], [0.0, 1.0]], public=1)
    assert said in refusal(PayloadError, node.keep_public_samples, to_record(public_samples))
    assert len(node.pool) == 1


def test_blocks_add_up_and_another_run_begins_anew():
    context = Context(1, 1, {}, RecordDict(), {})
    block = {"inputs.2": np.ones((3, 2), np.float32)}
    store = PublicSampleStore(context)
    assert store.keep(to_record(block), DataSpec((2,), 2), "float32") == 3
    assert store.keep(to_record({"inputs.1": np.zeros((1, 2), np.float32)}), DataSpec((2,), 2), "float32") == 1
    data = linear_node([[5.0, 5.0]], [1], [[1.0, 0.0], [0.0, 1.0]], public=1).data
    assert [len(block) for block in store.pool(0, data).blocks.values()] == [1, 1, 3]
    context.run_id = 2
    assert list(PublicSampleStore(context).pool(0, data).blocks) == [0]
    PublicSampleStore(context).keep(to_record(block), DataSpec((2,), 2), "float32")
    assert [key for key in context.state if key.startswith("hetfl-seeds")] == ["hetfl-seeds.2"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dtype": "uint8"}, "client 0 has (2,) float32; client 2 has (2,) uint8"),
        ({"public": MAX_SHARED + 1}, "but client 2 has 16777217: change public-fraction"),
    ],
    ids=str,
)
def test_sharing_is_refused_by_name_where_it_cannot_be(refusal, fields, said):
    assert said in refusal(FederationError, Roster([member(0), member(2, **fields)]).check_sharing, "fedmd")
    Roster([member(0), member(2, public=MAX_SHARED)]).check_sharing("fedmd")


def test_of_a_client_no_more_rows_are_taken_than_the_others_take(make_config, make_federation, monkeypatch):
    """Whatever an algorithm checks: who has registered more is left out, and nobody is sent what it would refuse."""
    for module in ("node.pool", "server.exchange"):
        monkeypatch.setattr(f"hetfl_flwr.{module}.MAX_SHARED", 60)
    inputs, labels = np.zeros((61, 1, 8, 8), np.uint8), np.zeros(61, np.int64)
    config = make_config(clients=3)
    federation = make_federation(config, forging(config, SHARE, {"inputs": inputs, "labels": labels}, 0))
    rich = next(iter(federation.roster))
    federation.roster.remove(rich.node)
    federation.roster.add(replace(rich, public=61))
    shared = sharing_in(federation, Sharing()).share()
    assert [failure.client_id for failure in shared.failures] == [0]
    assert list(federation.roster.public_samples) == [1, 2]


def test_rows_are_compared_with_those_of_clients_that_are_here(make_config, make_federation):
    federation = make_federation(make_config(clients=3, dataset="breast-cancer", models="mlp"))
    sharing_in(federation, Sharing()).share()
    rows = federation.samples.guard
    assert list(rows.newest) == [0, 1, 2]
    gone = next(iter(federation.roster))
    federation.roster.remove(gone.node)
    federation.samples.share()
    assert list(rows.newest) == [1, 2]


def test_tokens_of_others_outside_the_vocabulary_are_refused_by_name(refusal):
    store, spec = PublicSampleStore(Context(1, 1, {}, RecordDict(), {})), DataSpec((2,), 3, vocabulary=7)
    assert store.keep(to_record({"inputs.1": np.int32([[0, 6]])}), spec, "int32") == 1
    said = refusal(PayloadError, store.keep, to_record({"inputs.2": np.int32([[0, 7]])}), spec, "int32")
    assert said == "server: public samples of client 2: array 'inputs' has values above 6"
