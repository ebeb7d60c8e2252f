"""What every algorithm of this project keeps to: the contract of any algorithm, and what is asked beyond it here."""

from typing import ClassVar

import numpy as np
import pytest
from fixtures.tiers import exhaustive
from flwr.app import Context, RecordDict
from safetensors.numpy import load_file
from threadpoolctl import threadpool_limits

from hetfl_flwr.errors import PayloadError
from hetfl_flwr.methods import build_client, names
from hetfl_flwr.wire.codec import from_record, to_record
from simulations.testing import AlgorithmContract
from simulations.testing.contract import bits, downloads, entries, first_round, give_public_samples, prepared
from simulations.testing.lab import NORMED, Lab, in_a_run


class TestEveryAlgorithm(AlgorithmContract):
    keys: ClassVar = {
        **{"fedmd.pretrain-epochs": 1, "fedmd.pretrain-private-epochs": 1},  # each test would wait for 45
        "feddf.server-steps": 5,
    }

    @pytest.fixture(params=names())
    def name(self, request):
        return request.param

    def test_every_client_says_its_training_loss_and_how_many_samples_it_saw(self, name, lab):
        """Three batches of eight, whatever the size of the client; of FedH2L one."""
        keys = {"clients": 4, "partition": "square", "models": "mlp", "rounds": 1}
        keys |= {"local_batches": 3, "batch_size": 8, "outlier_factor": 0.0}
        said = entries(lab.run(lab.config(**keys)))[-1]["clients"].values()
        assert all(one["train-loss"] > 0 for one in said)
        assert [one["samples-seen"] for one in said] == [8 if name == "fedh2l" else 24] * 4

    def test_a_client_refuses_a_bad_download_by_the_array_s_name(self, lab, refusal):
        """Of round 2: with one axis more, of another type, or of numbers that are none."""
        config = lab.config()
        federation = lab.federation(config)
        strategy, arrays, exchange = first_round(federation)
        learnt = strategy.learn(arrays, exchange.replies, 1)
        good, node = downloads(federation, learnt, 2)[0][1], lab.node(config)
        give_public_samples(node, federation, strategy)
        spec = build_client(config, node).download_spec()
        spec.check_named(good, "server")
        for name, array in good.items():
            bad = [array[..., None], array.astype(np.complex64)]
            bad += [np.full_like(array, np.nan)] if array.size and array.dtype.kind == "f" else []
            for one in bad:
                assert f"'{name}'" in refusal(PayloadError, spec.check_named, {**good, name: one}, "server")

    @pytest.mark.exhaustive
    def test_the_number_of_workers_changes_no_bit(self, lab, tmp_path):
        played = []
        for workers in (1, 2):
            folder = lab.run(lab.config(clients=3, output_dir=str(tmp_path / f"{workers}")), workers=workers)
            clients = [entry["clients"] for entry in entries(folder)]
            played.append((clients, (folder / "knowledge.safetensors").read_bytes()))
        assert played[0] == played[1]

    def test_two_runs_of_one_series_do_not_mix_state(self, lab, tmp_path):
        """Flower hands a node's later run what an earlier one of its series has left in the Context: the run's end is
        that of one on new nodes, bit for bit."""
        config = lab.config()
        fresh = lab.run(config.with_values({"output-dir": str(tmp_path / "fresh")}))
        grids = [lab.grid(config, run=run) for run in (8, 9)]
        left: dict[int, RecordDict] = {}
        for grid, keys in zip(grids, ({"output-dir": str(tmp_path / "first"), "seed": 1}, {}), strict=True):
            contexts, flat = grid._host._clients._contexts, config.with_values(keys).to_flat()
            for client_id, node in enumerate(grid.get_node_ids()):  # as Flower keeps them, all in records
                own = {"partition-id": client_id, "num-partitions": config.clients}
                contexts[node] = Context(grid.run.run_id, node, own, left.get(node, RecordDict()), flat)
            later = lab.run(config.with_values(keys), grid, run_id=grid.run.run_id)
            left = {node: context.state for node, context in contexts.items()}
        assert (later / "knowledge.safetensors").read_bytes() == (fresh / "knowledge.safetensors").read_bytes()
        assert [entry["clients"] for entry in entries(later)] == [entry["clients"] for entry in entries(fresh)]

    def test_flower_s_own_loop_ends_with_the_same_server_state(self, lab):
        """`Strategy.start` of Flower, over clients that have registered, equals the ServerApp's rounds, bit for bit."""
        config = lab.config(clients=3)
        federation = lab.federation(config)
        strategy, arrays = prepared(federation)
        with threadpool_limits(1, "blas"):  # as the ServerApp does
            result = strategy.start(federation.grid, to_record(arrays), num_rounds=config.rounds)
        folder = lab.run(config)
        assert bits(from_record(result.arrays)) == bits(load_file(folder / "knowledge.safetensors"))
        samples = [member.test for member in federation.roster]
        accuracies = [one["accuracy"] for one in entries(folder)[-1]["clients"].values()]
        measured = result.evaluate_metrics_clientapp[config.rounds]["accuracy"]
        assert measured == pytest.approx(np.average(accuracies, weights=samples))


class TestWeightsAveragedRobustly(AlgorithmContract):
    keys = {  # noqa: RUF012
        "models": NORMED,
        "robust": "trimmed:0.4",
        "lgfedavg.mode": "body",
        "fedhenn.mode": "homogeneous",
    }

    @pytest.fixture(params=["fedavg", "fedprox", "fedrep", "lgfedavg", "fedhenn"])
    def name(self, request):
        return request.param


class TestAsynchronous(AlgorithmContract):
    """Methods that answer each client as it comes keep to what every method does, as far as it has a meaning."""

    @pytest.fixture(params=["fedhe", exhaustive("fd"), exhaustive("fedproto"), exhaustive("fedgh")])
    def name(self, request):
        return request.param

    @pytest.fixture
    def lab(self, name, tmp_path):
        models = f"{NORMED},mlp"
        keys = {"algorithm": name, "models": models, "partition": "classes:6", f"{name}.mode": "async"}
        with in_a_run(), Lab(tmp_path, keys) as lab:
            yield lab
