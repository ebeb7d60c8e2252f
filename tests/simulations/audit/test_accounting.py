"""Epsilon: ours and another accountant's, with sampled clients, and in an audit."""

from dataclasses import replace
from itertools import pairwise
from math import expm1, inf, log1p

import pytest

from hetfl_flwr.wire.privacy import epsilon
from simulations.audit.accounting import amplified, guarantees
from simulations.reports.runs import load_run

KEPT = {"keep_uploads": True, "models": "mlp", "rounds": 3, "local_batches": 1, "algorithm": "fedhe"}
NOISY = KEPT | {"clients": 4, "fraction": 0.75, "clipping_norm": 4.0, "noise_multiplier": 2.0}


@pytest.fixture
def accountant():
    return pytest.importorskip("dp_accounting")


@pytest.mark.parametrize("noise", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_one_round_of_sampled_clients_is_the_closed_form(accountant, noise, rate):
    """Balle et al. 2018, theorem 9: delta = rate * delta' at exp(epsilon) - 1 = rate * (exp(epsilon') - 1)."""
    whole = epsilon(noise, 1, 1e-5 / rate)
    assert amplified(noise, rate, 1) == pytest.approx(log1p(rate * expm1(whole)), rel=2e-3, abs=1e-4)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 20), (10.0, 50)])
def test_sampling_all_amplifies_nothing_and_fewer_amplifies_more(accountant, noise, rounds):
    rates = [0.01, 0.1, 0.3, 0.6, 0.9, 1.0]
    found = [amplified(noise, rate, rounds) for rate in rates]
    assert found == sorted(found)
    assert all(one < other for one, other in pairwise(found))
    assert found[-1] == pytest.approx(epsilon(noise, rounds), rel=1e-4)


def test_no_noise_and_no_rounds(accountant):
    assert (amplified(0.0, 0.5, 3), amplified(1.0, 0.5, 0)) == (inf, 0.0)


def test_an_audit_says_what_sampled_clients_are_guaranteed(accountant, lab, tmp_path):
    run = load_run(lab.run(lab.config(**NOISY)))
    found, unknown = guarantees(run)
    assert unknown == ""
    most = max(client["uploads"] for client in run.clients)
    assert [(one.uploads, one.rate) for one in found] == [(most, 1.0), (3, 0.75)]
    assert found[0].epsilon == run.summary["epsilon"]
    assert found[1].epsilon == amplified(2.0, 0.75, 3)
    again = [{**client, "uploads": client["uploads"] + 1} for client in run.clients]
    found, unknown = guarantees(replace(run, clients=again))
    assert ([one.rate for one in found], "repeated rounds" in unknown) == ([1.0], True)
    assert guarantees(load_run(lab.run(lab.config(**KEPT, clients=2, output_dir=str(tmp_path / "plain"))))) == ([], "")
