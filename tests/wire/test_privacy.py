"""Clipping, noise and half precision, by themselves and in two rounds of every algorithm."""

import json
import sys
from dataclasses import dataclass
from html import unescape
from math import exp, inf, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fixtures.federations.grids import LITTLE, Meddled, Tampering, Watched
from fixtures.wrong.faults import failing
from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.differential_privacy import compute_clip_model_update
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm

from hetfl_flwr.config import RunConfig, for_node
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ConfigError, PayloadError
from hetfl_flwr.methods import find, names
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.wire.codec import HALF_LIMIT, check_halves, decode, from_record, halved, to_record
from hetfl_flwr.wire.messages import METRICS
from hetfl_flwr.wire.privacy import (
    GaussianMechanism,
    caveats,
    epsilon,
    guarantee,
    onto_simplex,
    private_rows,
    private_upload,
)
from hetfl_flwr.wire.samples import public_samples
from hetfl_flwr.wire.spec import EMPTY, ArraySpec, PayloadSpec
from simulations.engine.workers import Task
from simulations.reports.report import report_page
from simulations.reports.runs import load_run
from simulations.reports.tables import compare_table
from simulations.testing.contract import entries
from simulations.testing.lab import NORMED
from strategies.chfl import linear_head, summed_heads
from strategies.fedh2l import teaching_signal
from strategies.fedhe import class_logits, known_class_logits

ALGORITHMS = names()

Named = dict[str, NDArray[Any]]


def config(**keys: Any) -> RunConfig:
    return RunConfig(**{"noise_source": "seed", **keys})


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# --- the mechanism -------------------------------------------------------------------------------


def test_rows_are_cut_to_the_clipping_norm_each_by_itself():
    """(3, 4) has norm 5, so it is halved; (0.6, 0.8) has norm 1 and nothing has none: both stay as they are."""
    rows = np.array([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]])
    cut = GaussianMechanism(2.5, 0.0)(rows, rng())
    np.testing.assert_allclose(cut[0], [1.5, 2.0], rtol=1e-6)
    assert (cut[1:] == rows[1:]).all()


def test_the_noise_has_the_deviation_that_was_asked_for():
    """Of N normal numbers of deviation s, the mean has the deviation s / sqrt(N) and the measured deviation about
    s / sqrt(2 N). Five of either are passed in one of a million runs, and the seed is fixed."""
    count, deviation = 100_000, 0.5 * 3.0
    noise = GaussianMechanism(3.0, 0.5)(np.zeros((10, count // 10)), rng())
    assert abs(noise.mean()) < 5 * deviation / sqrt(count)
    assert abs(noise.std() - deviation) < 5 * deviation / sqrt(2 * count)


# --- uploads -------------------------------------------------------------------------------------

WEIGHTS = PayloadSpec((ArraySpec("w", (2, 2), "float32"), ArraySpec("b", (2,), "float32")))


def test_clipping_is_that_of_flower_s_local_dp_mod():
    """Which clips the change of weights, all arrays together."""
    draw = rng()
    sent = {"w": draw.normal(size=(2, 2)).astype("f4"), "b": draw.normal(size=2).astype("f4")}
    learnt = {name: array + 1 for name, array in sent.items()}
    theirs = list(learnt.values())
    compute_clip_model_update(theirs, list(sent.values()), 0.5)
    ours = private_upload(learnt, WEIGHTS, sent, WEIGHTS, config(clipping_norm=0.5), 0, 1)
    for mine, other in zip(ours.values(), theirs, strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, other, rtol=1e-6)


@pytest.mark.parametrize("changed", [False, True])
def test_frozen_weights_have_no_noise_unless_they_have_changed(changed):
    """Such as those of a moving average, which have no gradient and change all the same."""
    spec = PayloadSpec((ArraySpec("w", (2, 2), "float32"), ArraySpec("b", (2,), "float32", frozen=True)))
    sent = {"w": np.zeros((2, 2), "f4"), "b": np.ones(2, "f4")}
    ours = private_upload({**sent, "b": sent["b"] + changed}, spec, sent, spec, config(**NOISE), 0, 1)
    assert (ours["w"] != sent["w"]).all()
    assert (ours["b"] == 1).all() != changed


def test_what_is_declared_otherwise_is_no_update():
    """The sum of heads has a head's names and shapes, and is another quantity: the head itself is clipped, (3, 4)."""
    head, total = {"weight": np.float32([[3.0]]), "bias": np.float32([4.0])}, np.float32([[9.0]])
    sent = {"weight": total, "bias": total[0], "heads": np.array(2, "i4")}
    ours = private_upload(head, linear_head(1, 1), sent, summed_heads(1, 1), config(clipping_norm=1.0), 0, 1)
    np.testing.assert_allclose([ours["weight"][0, 0], ours["bias"][0]], [0.6, 0.8], rtol=1e-6)


def test_of_counts_only_whether_there_are_any_is_clipped_with_the_logits():
    """Logits of norm sqrt(14) and two classes that are there, (1, 1), have norm 4: all is cut to a quarter. The classes
    stay there, though 1/4 rounds to 0."""
    upload = {"logits": np.full((3, 3), sqrt(14) / 3, "f4"), "counts": np.array([0, 600, 8])}
    ours = private_upload(upload, class_logits(3), {}, known_class_logits(3), config(clipping_norm=1.0), 0, 1)
    np.testing.assert_allclose(ours["logits"], upload["logits"] / 4, rtol=1e-6)
    assert ours["counts"].tolist() == [0, 1, 1]
    assert ours["counts"].dtype == np.int64


def test_a_noisy_count_is_there_above_the_noise_s_deviation():
    """The noise of deviation 1 passes it with probability 0.159 where there is none, and 0.5 where there are any (whose
    1 is not cut: a norm of 1 is allowed). Of 200 draws of each, five deviations are 0.13 and 0.18."""
    noisy = config(clipping_norm=1.0, noise_multiplier=1.0)
    upload = {"logits": np.zeros((2, 2), "f4"), "counts": np.array([0, 9])}
    draws = [private_upload(upload, class_logits(2), {}, EMPTY, noisy, 0, round)["counts"] for round in range(200)]
    np.testing.assert_array_less(np.abs(np.mean(draws, 0) - [0.159, 0.5]), [0.13, 0.18])


@given(st.integers(0, 2**31), st.sampled_from([0.1, 1.0, 1e12]))
def test_whatever_the_noise_the_upload_fits_its_declaration(seed, noise):
    """Distributions, a fraction, counts from 0 on, limits of weights, and variances from 0 on."""
    norm_layer = PayloadSpec((ArraySpec("running_var", (3,), "float32", minimum=0.0, maximum=50.0),))
    for spec, upload in (
        (teaching_signal(2, 5, 3), {"indices": np.zeros(2, "i4"), "posteriors": np.eye(3, dtype="f4")[:2]}),
        (class_logits(3), {"logits": np.eye(3, dtype="f4"), "counts": np.arange(3)}),
        (norm_layer, {"running_var": np.ones(3, "f4")}),
    ):
        whole: Named = {**upload, "accuracy": np.array(0.5, "f4")} if "indices" in upload else upload
        keys = {"clipping_norm": 2.0, "noise_multiplier": noise, "seed": seed}
        noised = private_upload(whole, spec, {}, EMPTY, config(**keys), 0, 1)
        spec.check_named(noised, "client 0")


@given(arrays(np.float64, (3, 4), elements=st.floats(-100, 100)))
def test_no_distribution_is_nearer_than_the_projection(rows):
    """The nearest point p of a convex set is the one from which no other point lies towards x: (x - p)(q - p) <= 0.
    It is enough to try the corners q."""
    nearest = onto_simplex(rows)
    assert (nearest >= 0).all()
    np.testing.assert_allclose(nearest.sum(1), 1)
    for row, point in zip(rows, nearest, strict=True):
        assert ((np.eye(4) - point) @ (row - point) <= 1e-9).all()


# --- public samples ---------------------------------------------------------------------------------


def test_pixels_are_clipped_row_by_row_and_stay_pixels_and_texts_cannot_be(refusal):
    """(6, 8) is cut from norm 10 to 4: (2.4, 3.2), rounded. With much noise all lie in 0 to 255, and at both ends."""
    spec = public_samples(2, DataSpec((1, 1, 2), 3), "uint8", labelled=True)
    rows: Named = {"inputs": np.array([[[[6, 8]]], [[[0, 1]]]], np.uint8), "labels": np.array([2, 0])}
    cut = private_rows(rows, spec, config(public_clipping_norm=4.0), 0)
    assert cut["inputs"].ravel().tolist() == [2, 3, 0, 1]
    assert cut["inputs"].dtype == np.uint8
    assert cut["labels"] is rows["labels"]
    many = {**rows, "inputs": np.repeat(rows["inputs"], 50, 0)}
    noised = private_rows(many, spec, config(public_clipping_norm=1.0, public_noise_multiplier=1e4), 0)["inputs"]
    assert {0, 255} <= set(noised.ravel().tolist())
    assert private_rows(rows, spec, config(clipping_norm=0.1), 0) is rows
    texts = public_samples(1, DataSpec((2,), 2, vocabulary=9), "int32", labelled=False)
    refusal(ConfigError, private_rows, {"inputs": np.ones((1, 2))}, texts, config(public_clipping_norm=1.0), 0)


# --- where noise comes from ----------------------------------------------------------------------


def noise_of(*scope: int, **keys: Any) -> float:
    spec = PayloadSpec((ArraySpec("x", (), "float64"),))
    noisy = config(clipping_norm=1.0, noise_multiplier=1.0, **keys)
    return float(private_upload({"x": np.zeros(())}, spec, {}, EMPTY, noisy, *scope)["x"])


def test_noise_from_the_seed_is_each_client_s_and_each_round_s_own():
    scopes = [(0, 1), (0, 2), (1, 1)]
    assert [noise_of(*scope) for scope in scopes] == [noise_of(*scope) for scope in scopes]
    assert len({*(noise_of(*scope) for scope in scopes), noise_of(0, 1, seed=1)}) == 4


def test_in_deployment_noise_is_nobody_s_to_foresee(monkeypatch):
    """A process that is not known to simulate has the id of a node of its own, or none; its own code may use Ray."""
    assert noise_of(0, 1, noise_source="auto") == noise_of(0, 1)
    assert noise_of(0, 1, noise_source="system") != noise_of(0, 1, noise_source="system")
    monkeypatch.setattr(TaskIdentity, "_node_id", 2**62 + 3)
    driver = SimpleNamespace(get_actor_id=lambda: None)
    for ray in (None, {"is_initialized": lambda: True}, {}):
        if ray is not None:
            monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: driver, **ray))
        assert noise_of(0, 1, noise_source="auto") != noise_of(0, 1, noise_source="auto")
    assert noise_of(0, 1) == noise_of(0, 1)


# --- what is guaranteed --------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "uploads", "sensitivity"), [(1.0, 1, 2.0), (4.0, 10, 2.0), (20.0, 50, 1.0)])
def test_epsilon_is_that_of_the_definition(noise, uploads, sensitivity):
    """(epsilon, delta) holds of two densities p and q if the integral of max(p - e^epsilon q, 0) is delta: here of the
    sum of R uploads that all differ by the sensitivity, N(R Delta, R s^2) and N(0, R s^2)."""
    deviation = sqrt(uploads) * noise
    p, q = norm(uploads * sensitivity, deviation), norm(0, deviation)
    found = epsilon(noise, uploads, 1e-3, sensitivity=sensitivity)
    ends = p.mean() - 12 * deviation, p.mean() + 12 * deviation
    delta, _ = quad(lambda x: max(p.pdf(x) - exp(found) * q.pdf(x), 0.0), *ends, limit=500)
    assert delta == pytest.approx(1e-3, rel=1e-4)


def test_epsilon_at_its_ends():
    """Without noise nothing is guaranteed, without uploads all; so much noise that delta alone covers it needs none.
    With little noise, epsilon is near mu^2 / 2: here 2 (1 / 0.001)^2."""
    assert epsilon(0.0, 1) == inf
    assert epsilon(0.0, 0) == epsilon(1e9, 1) == 0.0
    assert epsilon(0.001, 1) == pytest.approx(2e6, rel=0.01)
    assert [epsilon(noise, uploads) for noise in (1e-160, 1e-100, 1e-9) for uploads in (1, 50)] == [inf] * 6


# --- config --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "public-"])
def test_noise_needs_a_clipping_norm_and_a_node_may_want_more_than_the_run(refusal, prefix):
    assert f"{prefix}clipping-norm" in refusal(ConfigError, RunConfig.from_flat, {f"{prefix}noise-multiplier": 1.0})
    run = RunConfig.from_flat({f"{prefix}noise-multiplier": 0.5, f"{prefix}clipping-norm": 1.0})
    run = run.with_values({"noise-source": "seed"})
    keys = f"{prefix}clipping-norm", f"{prefix}noise-multiplier", "noise-source"
    for source, its in ({}, "system"), ({"noise-source": "seed"}, "seed"):
        own = for_node(run, {f"{prefix}noise-multiplier": 4, **source}).to_flat()
        assert [own[key] for key in keys] == [1.0, 4.0, its]
    assert f"{prefix}clipping-norm above 0" in refusal(ConfigError, for_node, run, {f"{prefix}clipping-norm": 0.0})


# --- half precision ------------------------------------------------------------------------------


def test_float32_alone_is_halved_and_comes_back_wide_and_another_precision_is_refused(refusal):
    spec = PayloadSpec(tuple(ArraySpec(kind, (2,), kind) for kind in ("float32", "float64", "int64", "bool")))
    whole = {one.name: np.array([0, 1], one.dtype) for one in spec.arrays}
    sent = halved(whole)
    assert [array.dtype.name for array in sent.values()] == ["float16", "float64", "int64", "bool"]
    came = decode(spec, to_record(sent), "client 0", half=True)
    assert {name: array.dtype.name for name, array in came.items()} == {name: name for name in spec.names}
    for half, other, name in ((True, whole, "float32"), (False, sent, "float16")):
        said = refusal(PayloadError, decode, spec, to_record(other), "client 3", half=half)
        assert ("'float32'" in said, name in said.replace("'float32'", "")) == (True, True)


def test_posteriors_sum_to_one_again_and_what_never_did_is_refused(refusal):
    """A thousand classes, each rounded by itself, are off by more than float32's tolerance."""
    draw = rng().dirichlet(np.ones(1000), 4).astype("f4")
    spec = PayloadSpec((ArraySpec("posteriors", (4, 1000), "float32", sums_to_one=True),))
    sent = halved({"posteriors": draw})
    assert np.abs(sent["posteriors"].astype("f8").sum(1) - 1).max() > 1e-6
    came = decode(spec, to_record(sent), "client 0", half=True)["posteriors"]
    np.testing.assert_allclose(came, draw, rtol=1e-2, atol=1e-7)
    np.testing.assert_allclose(came.sum(1, dtype="f8"), 1, atol=1e-6)
    forged = to_record({"posteriors": (sent["posteriors"] * 0.9).astype("f2")})
    assert "do not sum to 1" in refusal(PayloadError, decode, spec, forged, "client 0", half=True)


def test_a_client_s_numbers_beyond_half_precision_are_refused_the_server_s_are_cut_off(refusal):
    largest = {"weight": np.float32([HALF_LIMIT, -HALF_LIMIT])}
    check_halves(largest, "client 0")
    beyond = {"weight": largest["weight"] * np.float32(1.1)}
    assert "'weight'" in refusal(PayloadError, check_halves, beyond, "client 0")
    assert halved(beyond)["weight"].tolist() == [HALF_LIMIT, -HALF_LIMIT]


def test_public_rows_are_shared_with_their_noise(make_config, make_federation, make_node):
    keys = {"public_clipping_norm": 20.0, "public_noise_multiplier": 0.1}
    config = make_config(algorithm="agg", models="mlp", **keys)
    federation: Federation = make_federation(config)
    inputs, labels = make_node(config, 0).data.public.stored()
    assert federation.samples.share().failures == []
    seen = federation.roster.public_samples[0]
    assert (seen["labels"] == labels.numpy()).all()
    assert 1 < np.abs(seen["inputs"].astype(float) - inputs.numpy()).mean() < 10


# --- every algorithm -----------------------------------------------------------------------------


@dataclass
class Seen:
    """What was on the wire: bytes of float16 arrays, save for those that evaluation costs, and the dtypes of all."""

    halves: int = 0
    dtypes: frozenset[str] = frozenset()

    def look(self, message: Message) -> Message:
        for array in (a for record in message.content.array_records.values() for a in from_record(record).values()):
            self.dtypes |= {array.dtype.name}
            if array.dtype == np.float16 and message.metadata.message_type != MessageType.EVALUATE:
                self.halves += array.nbytes
        return message


@pytest.fixture
def small(make_config):
    """Build a config of two clients with hardly any work; heterogeneous models where the algorithm takes them."""

    def build(name: str, folder: str, **keys: Any) -> RunConfig:
        little = {"local_batches": 1, "public_fraction": 0.05, **LITTLE.get(name, {})}
        models = f"{NORMED},mlp" if find(name).strategy.heterogeneous else NORMED
        config = make_config(**{"algorithm": name, "models": models, **little, **keys})
        return config.with_values({"output-dir": f"{config.output_dir}/{folder}"})

    return build


@pytest.mark.parametrize("name", ALGORITHMS)
def test_half_precision_halves_all_floats_of_every_algorithm_and_nothing_else(name, small, run_federation):
    """Each float16 that travelled is two bytes less than without it. FedHeNN's factor has one rank in both."""
    whole = entries(run_federation(small(name, "full")))
    config = small(name, "half", payload_precision="half")
    seen = Seen()
    grid = Meddled(config, asked=lambda grid, message: seen.look(message), answered=seen.look)
    half = entries(run_federation(config, grid))
    assert [entry["failures"] for entry in half] == [[], [], []]
    assert "float32" not in seen.dtypes
    sums = [sum(entry[f"bytes_{way}"] for entry in run for way in ("up", "down")) for run in (whole, half)]
    assert sums[0] - sums[1] == seen.halves
    assert (seen.halves > 0) == (name not in ("agg", "local"))


NOISE = {"clipping_norm": 1.0, "noise_multiplier": 0.5, "public_clipping_norm": 20.0, "public_noise_multiplier": 0.1}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_takes_clipped_and_noisy_uploads(name, small, run_federation):
    """Rounds go on with all clients, in half precision too, and what the server learns depends on the noise alone."""
    folders = [
        run_federation(small(name, f"noise-{source}", **NOISE, noise_source=source, payload_precision="half"))
        for source in ("auto", "system")
    ]
    assert [entry["failures"] for folder in folders for entry in entries(folder)] == [[]] * 6
    seeded, system = ((folder / "knowledge.safetensors").read_bytes() for folder in folders)
    assert (seeded != system) == (name not in ("agg", "local"))


@pytest.mark.parametrize("name", ["fedhe", "fml"])
def test_a_clipping_norm_that_nothing_reaches_changes_no_bit(name, small, run_federation):
    """Knowledge that is clipped itself, and a change of weights that is put back together."""
    runs = [run_federation(small(name, f"{norm:g}", clipping_norm=norm)) for norm in (0.0, 1e9)]
    off, high = ((folder / "knowledge.safetensors").read_bytes() for folder in runs)
    assert off == high


# --- whose uploads count -------------------------------------------------------------------------


def told(folder: Path) -> tuple[dict[str, Any], list[int], list[float]]:
    """Return a run's summary, and each client's uploads and epsilon."""
    clients = json.loads((folder / "clients.json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    return summary, [client["uploads"] for client in clients], [client["epsilon"] for client in clients]


def test_epsilon_counts_the_uploads_of_each_client_in_an_asynchronous_run(small, run_federation, caplog):
    """Ten rounds of three clients are 30 uploads, of which client 2, twenty times slower, makes one."""
    keys = {"fedhe.mode": "async", "rounds": 10, "clients": 3, "client_seconds": "1,1,20"}
    folder = run_federation(small("fedhe", "run", **NOISE, **keys))
    summary, uploads, epsilons = told(folder)
    assert sum(uploads) == 30
    assert uploads[2] == 1
    assert max(uploads) > 13
    assert epsilons == [epsilon(0.5, count) for count in uploads]
    assert summary["epsilon"] == max(epsilons) > epsilon(0.5, 10)
    assert summary["noise_source"] == "seed"
    line = f"{guarantee(0.5, max(uploads))}; {caveats('seed')}"
    assert any(f"privacy: {guarantee(0.5, max(uploads))}; " in message for message in caplog.messages)
    start = f"privacy: {guarantee(0.5, 10)}, one per round (fast clients of an asynchronous run upload more often); "
    assert any(start in message for message in caplog.messages)
    run, other = load_run(folder), load_run(run_federation(small("fedhe", "off")))
    assert line in unescape(report_page([run]))
    tables = compare_table([run, other]), compare_table([other])
    both, alone = ({str(one.header): [str(cell) for cell in one.cells] for one in table.columns} for table in tables)
    assert both["epsilon"] == [f"{summary['epsilon']:.3g}", "-"]
    assert "epsilon" not in alone


def test_an_upload_that_is_rejected_counts_and_one_that_an_error_came_instead_of_does_not(small, run_federation):
    def spoilt(reply: Message) -> Message:
        reply.content = RecordDict({METRICS: reply.content.metric_records[METRICS]})
        return reply

    def failed(reply: Message) -> Message:
        failing("client 1: broke").change(reply)
        return reply

    for change, expected in ((spoilt, [2, 2]), (failed, [2, 0])):
        config = small("fedhe", change.__name__, **NOISE, clients=2, rounds=2)
        folder = run_federation(config, Tampering(config, 1, change))
        assert sum(len(entry["failures"]) for entry in entries(folder)) == 2
        assert told(folder)[1] == expected


@pytest.mark.parametrize(("source", "expected"), [("seed", [4, 4]), ("system", [6, 6])])
def test_an_upload_that_is_made_again_counts_again_unless_it_is_the_same_bits(small, run_federation, source, expected):
    """The run dies in round 4, its checkpoint is that of round 2: rounds 3 and 4 of four are done again."""

    def die(grid: Watched, task: Task) -> None:
        path = Path(config.output_dir) / "rounds.jsonl"
        if task.kind == MessageType.EVALUATE and path.exists() and path.read_bytes().count(b"\n") == 4:
            raise SystemExit

    config = small("fedhe", "run", **NOISE, noise_source=source, rounds=4, clients=2, checkpoint_every=2)
    with pytest.raises(SystemExit), Watched(config, die) as grid:
        run_federation(config, grid)
    folder = run_federation(config.with_values({"resume": True}))
    summary, uploads, _ = told(folder)
    assert uploads == expected
    assert summary["noise_source"] == source
    assert (folder / "upload-counts.safetensors").exists() == (source == "system")
