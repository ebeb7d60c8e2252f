"""The contract of an algorithm: tests with two or three clients, two rounds and digits."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from flwr.app import MessageType
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.errors import HetflError
from hetfl_flwr.methods import build_client, build_strategy, chosen, find
from hetfl_flwr.models import SplitModel
from hetfl_flwr.node.holder import Holder
from hetfl_flwr.node.node import KeptContext, Node
from hetfl_flwr.server.exchange import Outcome, Reply
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.member import Member
from hetfl_flwr.strategy import KnowledgeStrategy
from hetfl_flwr.wire.codec import to_record
from hetfl_flwr.wire.messages import ROUND
from hetfl_flwr.wire.spec import Arrays, Dim
from simulations.engine.clients import FIRST_NODE
from simulations.testing.lab import NORMED, Lab, Reversing, in_a_run


class AlgorithmContract:
    """Tests that every algorithm must pass. Derive a test class that names the algorithm; it may add its own tests.

    Examples
    --------
    >>> class TestFedHe(AlgorithmContract):
    ...     algorithm = "fedhe"
    """

    algorithm: ClassVar[str]
    """The algorithm's name, as in `hetfl run`."""

    keys: ClassVar[Mapping[str, Value]] = {}
    """Config keys that the algorithm needs, such as ``{"models": "mlp", "my_pkg.moments.weight": 0.5}``."""

    @pytest.fixture
    def name(self) -> str:
        """Return the algorithm's name."""
        return self.algorithm

    @pytest.fixture
    def lab(self, name: str, tmp_path: Path) -> Iterator[Lab]:
        """Build federations of the algorithm, in which no client has all classes.

        Models are heterogeneous if the algorithm supports that; one has dropout and batch norm.
        """
        models = f"{NORMED},mlp" if find(name).strategy.heterogeneous else NORMED
        keys: dict[str, Value] = {"algorithm": name, "models": models, "partition": "classes:6", **self.keys}
        with in_a_run(), Lab(tmp_path, keys) as lab:
            yield lab

    @pytest.mark.parametrize("clients", [1, 3])
    def test_two_rounds_run_without_a_failure_and_measure_every_client(self, lab: Lab, clients: int) -> None:
        """One client alone must work, too. In an asynchronous run, a client is measured when it uploads."""
        rounds = entries(lab.run(lab.config(clients=clients)))
        assert [entry["round"] for entry in rounds] == [0, 1, 2]
        assert [entry["failures"] for entry in rounds] == [[], [], []]
        everybody = [str(client) for client in range(clients)]
        if not _asynchronous(lab):
            assert all(sorted(entry["clients"]) == everybody for entry in rounds)
            assert all("accuracy" in measured for entry in rounds for measured in entry["clients"].values())
        measured = [
            (client, own["accuracy"])
            for entry in rounds
            for client, own in entry["clients"].items()
            if "accuracy" in own
        ]
        assert sorted({client for client, _ in measured}) == everybody
        assert all(0 <= accuracy <= 1 for _, accuracy in measured)

    def test_clients_may_miss_rounds(self, lab: Lab) -> None:
        """One of three clients is drawn for each round, so some take part late and with gaps."""
        if _asynchronous(lab):
            pytest.skip("an asynchronous run does not draw clients")
        rounds = entries(lab.run(lab.config(clients=3, rounds=3, fraction=0.3)))
        assert [entry["failures"] for entry in rounds] == [[], [], [], []]

    def test_an_embedding_width_for_all_is_the_width_of_models_on_both_sides(self, lab: Lab) -> None:
        """With ``width = 6`` both sides declare payloads of that width, unless the algorithm refuses it before round 1.

        An algorithm refuses it in the strategy's `check`, or when a client is built.
        """
        config = lab.config(width=6, rounds=1)
        try:
            build_strategy(config).check(lab.federation(config).roster)
        except HetflError:
            return
        rounds = entries(lab.run(config))
        assert [entry["failures"] for entry in rounds] == [[], []]

    def test_a_client_built_anew_for_each_message_equals_one_kept_alive(self, lab: Lab) -> None:
        """A new client has only its stored state; uploads, metrics and models must be bit-identical.

        What a client keeps belongs in `modules`, ``self.numbers`` and the optimizers of ``self.optimizer()``.
        """
        assert _played(lab, rebuild=True) == _played(lab, rebuild=False)

    @pytest.mark.parametrize(("moments", "optimizer"), [("reset", "adam"), ("reset", "sgd"), ("kept", "adam")])
    def test_what_the_server_replaces_loses_its_moments_and_what_stays_keeps_them(
        self, name: str, lab: Lab, moments: str, optimizer: str
    ) -> None:
        """With ``moments = "kept"``, all moments are kept. Load downloads into networks with ``self.load``."""
        for mode in find(name).modes or [""]:
            keys: dict[str, Value] = {f"{name}.mode": mode} if mode else {}
            own: dict[str, Value] = {"moments": moments, "optimizer": optimizer, "momentum": 0.9 * (optimizer == "sgd")}
            config = lab.config(models="mlp", rounds=3, **own, **keys)
            if build_strategy(config).asynchronous:
                continue
            watch = _Watch()
            _played(lab, rebuild=False, config=config, watch=watch)
            for found in watch.rounds[-config.clients :]:
                assert found
                assert [moments == "kept" or not replaced for replaced, _ in found] == [has for _, has in found]

    def test_what_goes_in_is_not_changed(self, lab: Lab) -> None:
        """Clients leave downloads and config unchanged, and the server its arrays and the replies."""
        config = lab.config()
        federation = lab.federation(config)
        strategy, arrays, exchange = first_round(federation)
        before = bits(arrays), [_frozen(reply) for reply in exchange.replies]
        learnt = strategy.learn(arrays, exchange.replies, 1)
        assert (bits(arrays), [_frozen(reply) for reply in exchange.replies]) == before

        download = list(downloads(federation, learnt, 2)[0][1].values())
        settings = {ROUND: 2}
        kept = deepcopy((download, settings))
        node = lab.node(config)
        give_public_samples(node, federation, strategy)
        build_client(config, node).fit(download, settings)
        assert settings == kept[1]
        for array, copy in zip(download, kept[0], strict=True):
            np.testing.assert_array_equal(array, copy)

    def test_a_client_that_raises_is_named_and_the_round_goes_on(
        self, name: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`aggregate` gets the other clients' uploads. An asynchronous run may name the client in other rounds."""
        client = chosen(lab.config()).client
        learn = client.learn

        def broken(self: Any, download: Any, round: int) -> Any:
            if self.node.client_id == 1:
                raise RuntimeError("the disk\nis full")
            return learn(self, download, round)

        monkeypatch.setattr(client, "learn", broken)
        rounds = entries(lab.run(lab.config(clients=3)))
        failed = [(entry["round"], failure) for entry in rounds for failure in entry["failures"]]
        if not _asynchronous(lab):
            assert [number for number, _ in failed] == [entry["round"] for entry in rounds[1:]]
            assert all(failure["reason"].startswith(f"client 1, train, round {number}: ") for number, failure in failed)
        assert failed
        for _, failure in failed:
            reason = failure.pop("reason")
            assert re.match(r"client 1, train, round \d+: RuntimeError: the disk is full \(", reason)
            assert failure == {"partition": 1, "stage": "train", "node": FIRST_NODE + 1}

    def test_the_order_of_replies_changes_no_bit(self, lab: Lab) -> None:
        """`aggregate` gets uploads in the order of client ids."""
        config = lab.config(clients=3)
        learnt = []
        for grid in (None, Reversing(config)):
            strategy, arrays, exchange = first_round(lab.federation(config, grid))
            learnt.append(strategy.learn(arrays, exchange.replies, 1))
        assert bits(learnt[0]) == bits(learnt[1])

    def test_a_strategy_keeps_nothing_in_itself_between_two_rounds(self, lab: Lab) -> None:
        """Round 1 repeated after round 2 gives the same result.

        What the server must remember belongs in the arrays that `initial` and `aggregate` return.
        """
        federation = lab.federation(lab.config())
        strategy, arrays, exchange = first_round(federation)
        once = strategy.learn(arrays, exchange.replies, 1)
        later = train(federation, strategy, once, round=2)
        strategy.learn(once, later.replies, 2)
        again = strategy.learn(arrays, exchange.replies, 1)
        assert bits(again) == bits(once)

    def test_the_payload_measured_is_the_payload_declared(self, lab: Lab) -> None:
        """If only the sender knows a size, up to its limit. Round 0 has only the payload of public samples."""
        config = lab.config()
        federation = lab.federation(config)
        strategy, _ = prepared(federation)
        nodes = [lab.node(config, client_id) for client_id in range(config.clients)]
        for node in nodes:
            give_public_samples(node, federation, strategy)
        clients = [build_client(config, node) for node in nodes]
        specs = {"up": [client.upload_spec() for client in clients], "down": [one.download_spec() for one in clients]}
        rounds = entries(lab.run(config))
        for way, declared in specs.items():
            most = sum(spec.nbytes for spec in declared)
            measured = [entry[f"bytes_{way}"] for entry in rounds[1:]]
            exact = not any(isinstance(size, Dim) for spec in declared for array in spec.arrays for size in array.shape)
            assert all(count == most if exact else 0 <= count <= most for count in measured)
            shares = strategy.sharing is not None and (way == "up" or strategy.sharing.to_clients)
            assert (rounds[0][f"bytes_{way}"] > 0) == shares

    def test_a_run_that_is_stopped_and_resumed_ends_as_one_that_never_was(self, lab: Lab, tmp_path: Path) -> None:
        """Results and byte counts are equal; public samples are sent again, but counted once, in round 0.

        So this also tests that runs with equal seeds are bit-identical. For an asynchronous algorithm, two complete
        runs are compared instead, as a shorter run has sent other messages.
        """
        if _asynchronous(lab):
            folders = [lab.run(lab.config(rounds=3, output_dir=str(tmp_path / name))) for name in ("once", "again")]
            once, again = ((folder / "knowledge.safetensors").read_bytes() for folder in folders)
            assert once == again
            return
        whole = lab.run(lab.config(rounds=3, output_dir=str(tmp_path / "whole")))
        config = lab.config(rounds=1, output_dir=str(tmp_path / "parts"))
        lab.run(config)
        parts = lab.run(config.with_values({"rounds": 3, "resume": True}))
        for first, second in zip(entries(whole), entries(parts), strict=True):
            kept = ("round", "accuracy", "bytes_up", "bytes_down", "failures")
            assert {key: first[key] for key in kept} == {key: second[key] for key in kept}
        assert (whole / "knowledge.safetensors").read_bytes() == (parts / "knowledge.safetensors").read_bytes()
        totals = [json.loads((folder / "clients.json").read_text()) for folder in (whole, parts)]
        assert [client["bytes_down"] for client in totals[0]] == [client["bytes_down"] for client in totals[1]]

    def test_the_global_generators_are_left_as_they_were(self, lab: Lab) -> None:
        """Draw random numbers from `hetfl_flwr.seeding.generator`; in `learn`, torch's generator is seeded, too."""
        before = _global_generators()
        lab.run(lab.config())
        assert _global_generators() == before

    def test_hyper_parameters_are_keyword_only_and_have_a_type_and_a_default(self, name: str) -> None:
        """Other parameters could not be set by config keys."""
        algorithm = find(name)
        kinds = algorithm.modes.values() or [algorithm]
        sides = [(side, around) for one in kinds for side, around in ((one.strategy, []), (one.client, ["node"]))]
        for side, surroundings in sides:
            parameters = inspect.signature(side).parameters
            own = {key: one for key, one in parameters.items() if key not in surroundings}
            assert [key for key in parameters if key not in own] == surroundings
            assert [key for key, one in own.items() if one.kind is not one.KEYWORD_ONLY] == []
            assert [key for key, one in own.items() if one.default is one.empty] == []
            assert [key for key, one in own.items() if one.annotation is one.empty] == []


def entries(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def bits(arrays: Arrays) -> dict[str, bytes]:
    """Return arrays as bytes, for comparison."""
    return {name: array.tobytes() for name, array in arrays.items()}


def train(federation: Federation, strategy: KnowledgeStrategy, arrays: Arrays, round: int = 1) -> Outcome:
    """Let all clients train for a round."""
    return federation.exchange.ask(MessageType.TRAIN, round, downloads(federation, arrays, round))


def downloads(federation: Federation, arrays: Arrays, round: int) -> list[tuple[Member, Arrays]]:
    """Return each client's download for a round."""
    return [(member, federation.strategy.download_for(member, arrays, round)) for member in federation.roster]


def prepared(federation: Federation) -> tuple[KnowledgeStrategy, Arrays]:
    """Return the strategy and the server state before round 1; share public samples if the strategy needs them."""
    strategy = federation.strategy
    arrays = strategy.prepare(federation.roster, federation.config)
    assert federation.samples.share().failures == []
    return strategy, arrays


def give_public_samples(node: Node, federation: Federation, strategy: KnowledgeStrategy) -> None:
    """Give a node from outside the federation the public samples of the other clients."""
    sharing = strategy.sharing
    if sharing is not None and sharing.to_clients:
        for client_id, block in federation.roster.public_samples.items():
            if client_id != node.client_id:
                node.keep_public_samples(to_record({f"{name}.{client_id}": array for name, array in block.items()}))


def first_round(federation: Federation) -> tuple[KnowledgeStrategy, Arrays, Outcome]:
    """Return the strategy, the server state before round 1, and the clients' replies in round 1."""
    strategy, arrays = prepared(federation)
    return strategy, arrays, train(federation, strategy, arrays)


def _frozen(reply: Reply) -> tuple[object, ...]:
    """Return a reply's content as bytes and numbers, for comparison."""
    arrays = {name: array.tobytes() for name, array in reply.arrays.items()}
    return arrays, dict(reply.metrics)


class _Watch:
    """Records before an optimizer's first step which parameters the server has replaced, and which have moments.

    `rounds` has a list of such pairs for each training message.
    """

    def __init__(self) -> None:
        self.rounds: list[list[tuple[bool, bool]]] = []

    @contextmanager
    def over(self, client: Any) -> Iterator[None]:
        """Watch a client while it answers one message."""
        models = [client.node.model, *(model for model in vars(client).values() if isinstance(model, SplitModel))]
        before = {one: one.detach().clone() for model in models for one in model.parameters()}
        replaced, known = list[set[Tensor]](), set[Optimizer]()

        def see(optimizer: Optimizer, *arguments: object) -> None:
            if not replaced:
                replaced.append({one for one, value in before.items() if not torch.equal(one, value)})
            if optimizer not in known:
                parameters = [one for group in optimizer.param_groups for one in group["params"]]
                self.rounds[-1] += [(one in replaced[0], bool(optimizer.state.get(one))) for one in parameters]
            known.add(optimizer)

        self.rounds.append([])
        hook = register_optimizer_step_pre_hook(see)
        try:
            yield
        finally:
            hook.remove()


def _played(
    lab: Lab, *, rebuild: bool, config: RunConfig | None = None, watch: _Watch | None = None
) -> tuple[list[Any], list[dict[str, bytes]]]:
    """Run rounds without an engine; return all replies and measurements, and the models at the end."""
    config = config or lab.config()
    federation = lab.federation(config)
    contexts = [lab.context(config, client_id) for client_id in range(config.clients)]
    if not rebuild:
        contexts = [KeptContext(**vars(context)) for context in contexts]
    nodes = [Node.from_context(context) for context in contexts]
    clients = [Holder(build_client(config, node), stays=not rebuild) for node in nodes]
    strategy, arrays = prepared(federation)
    for node in nodes:
        give_public_samples(node, federation, strategy)
    said: list[Any] = []

    def asked(client_id: int) -> Holder:
        """Return the client that answers the next message."""
        if rebuild:
            clients[client_id] = Holder(build_client(config, Node.from_context(contexts[client_id])))
        return clients[client_id]

    for round in range(1, config.rounds + 1):
        replies = []
        for client_id, (_, download) in enumerate(downloads(federation, arrays, round)):
            client = asked(client_id)
            with watch.over(client.client) if watch else nullcontext():
                upload, metrics = client.train(download, round)
            replies.append(Reply(client_id, cast("dict[str, float]", metrics), upload))
            said.append(_frozen(replies[-1]))
        arrays = strategy.learn(arrays, replies, round)
        for client_id, member in enumerate([] if watch else federation.roster):
            download = strategy.assess_download_for(member, arrays)
            said.append(asked(client_id).measure(download, round))
    return said, [_kept(client.client) for client in clients]


def _kept(client: Any) -> dict[str, bytes]:
    """Return a client's model as bytes; without state, its integer counters restart in each round and are left out."""
    return {
        key: tensor.numpy().tobytes()
        for key, tensor in client.node.model.state_dict().items()
        if client.keeps_state or tensor.is_floating_point()
    }


def _global_generators() -> tuple[object, ...]:
    """Return the states of the global generators of torch and NumPy; Flower itself uses Python's."""
    _, numbers, *position = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), np.asarray(numbers).tolist(), position


def _asynchronous(lab: Lab) -> bool:
    return build_strategy(lab.config()).asynchronous
