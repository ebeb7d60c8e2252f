"""What a round of training costs a client: measured by the node, added up, shown, and of no influence on the bits."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fixtures.folders.reached import summary_of
from fixtures.zoo import samples

from hetfl_flwr.data import DataSpec
from hetfl_flwr.models import build_model
from hetfl_flwr.node import meter
from hetfl_flwr.node.meter import Meter
from hetfl_flwr.runs.record import Round, total_costs
from hetfl_flwr.wire.cost_metrics import together
from simulations.reports.runs import load_run
from simulations.testing.contract import entries

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def test_operations_are_those_of_the_products():
    """A batch of 5 through 7 x 3 weights: 2 * 5 * 7 * 3 forwards, as many for the weights' gradient."""
    layer, inputs = torch.nn.Linear(7, 3), torch.ones(5, 7)
    with Meter(frozenset({"flops"}), CPU) as measured:
        layer(inputs).sum().backward()
    assert measured.costs == {"flops": 2 * 2 * 5 * 7 * 3}


def test_operations_of_an_lstm_are_those_that_one_counts_by_hand():
    """Each token is multiplied by 4 H x (H + H) weights; both linear layers and the LSTM take twice that backwards."""
    spec = DataSpec(shape=(25,), classes=2, vocabulary=50)
    model, texts = build_model("lstm1", spec, seed=0), samples(spec, 5)
    forwards = 2 * 5 * (25 * 400 * 200 + 100 * 100 + 100 * 2)
    with Meter(frozenset({"flops"}), CPU) as measured, torch.no_grad():
        model(texts)
    assert measured.costs == {"flops": forwards}
    with Meter(frozenset({"flops"}), CPU) as measured:
        model(texts).sum().backward()
    assert measured.costs == {"flops": 3 * forwards}


def test_operations_of_an_lstm_on_cuda_and_of_attention_count():
    """On the meta device, cuDNN's LSTM of 6 inputs and 4 states, for 5 texts of 3 tokens; two heads of width 8."""
    weights = [torch.empty(shape, device="meta") for shape in ((16, 6), (16, 4), (16,), (16,))]
    inputs, state = torch.empty(3, 5, 6, device="meta"), torch.empty(1, 5, 4, device="meta")
    with Meter(frozenset({"flops"}), CPU) as measured:
        torch.ops.aten._cudnn_rnn(inputs, weights, 4, None, state, state, 2, 4, 0, 1, False, 0.0, True, False, [], None)
    assert measured.costs == {"flops": 2 * 3 * 5 * 16 * (6 + 4)}
    heads = torch.ones(1, 2, 7, 8, requires_grad=True)
    with Meter(frozenset({"flops"}), CPU) as measured:
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).sum().backward()
    assert measured.costs == {"flops": (2 + 5) * 2 * 2 * 7 * 7 * 8}  # backward multiplies the scores again


def test_seconds_are_those_between():
    with Meter(frozenset({"time"}), CPU) as measured:
        end = meter.process_time() + 0.05
        while meter.process_time() < end:
            pass
    assert measured.costs["wall-seconds"] >= 0.05 * 0.9
    assert 0.05 <= measured.costs["cpu-seconds"] < 1


PEAKS = """
import numpy, torch
from hetfl_flwr.node.meter import Meter

found, memory = [], frozenset({"memory"})
for size in (300_000_000, 1):
    with Meter(memory, torch.device("cpu")) as measured:
        numpy.ones(size, numpy.uint8)
    found.append(measured.costs["peak-memory"])
print(found[0] - found[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not meter.RESET.exists(), reason="the peak begins anew on Linux alone")
def test_the_peak_of_memory_is_that_since_the_meter_was_entered():
    """In a process of its own, which holds nothing that others have left."""
    done = subprocess.run([sys.executable, "-c", PEAKS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 250_000_000 < float(done.stdout) < 350_000_000


def test_energy_is_the_difference_of_the_counters_that_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(meter, "POWERCAP", tmp_path)
    for package, microjoules in (
        ("intel-rapl:0", "1500000"),
        ("intel-rapl:10", "9000000"),
        ("intel-rapl:1", "?"),
        ("intel-rapl:0:0", "7"),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "energy_uj").write_text(microjoules)
        (tmp_path / package / "max_energy_range_uj").write_text("10000000")
    meter._joules.cache_clear()
    with Meter(frozenset({"energy"}), CPU) as measured:
        (tmp_path / "intel-rapl:0" / "energy_uj").write_text("4000000")
        (tmp_path / "intel-rapl:10" / "energy_uj").write_text("500000")  # it has begun anew at 10 J
    meter._joules.cache_clear()
    assert measured.costs == {"joules": pytest.approx(2.5 + 1.5)}


def test_costs_add_up_but_for_memory():
    clients = [{"0": {"flops": 3.0, "peak-memory": 5.0}, "1": {"flops": 4.0, "loss": 1.0}}, {"0": {"peak-memory": 7.0}}]
    rounds = [Round(number, 0.0, clients=one) for number, one in enumerate(clients)]
    assert total_costs(rounds) == {"flops": 7.0, "peak-memory": 7.0}
    for sign in (1, -1):  # what no file could hold
        assert together("flops", [sign * 1e308] * 2) == sign * sys.float_info.max


def test_a_run_has_them_per_client_and_in_all_with_the_same_bits(tmp_path, make_config, run_federation):
    keys = {"rounds": 2, "clients": 2, "models": "mlp"}
    measured = run_federation(make_config(**keys, costs="time,flops", output_dir=str(tmp_path / "measured")))
    plain = run_federation(make_config(**keys, output_dir=str(tmp_path / "plain")))
    lines = entries(measured)
    assert [line["accuracy"] for line in lines] == [line["accuracy"] for line in entries(plain)]
    own = [line["clients"][client]["flops"] for line in lines[1:] for client in ("0", "1")]
    costs = summary_of(measured)["costs"]
    assert costs["flops"] == sum(own) > 0
    assert sorted(costs) == ["cpu-seconds", "flops", "wall-seconds"]
    assert "costs" not in summary_of(plain)
    (measured / "summary.json").unlink()
    assert load_run(measured).summary["costs"] == costs
