"""DS-FL: a round by hand, entropy reduction against its formula, a slow loop."""

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import fit
from fixtures.federations.members import member, roster
from fixtures.federations.nodes import linear_node
from scipy.optimize import minimize

from clients.dsfl import DSFLClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.seeding import generator
from hetfl_flwr.strategy import Upload
from strategies.dsfl import DSFL

TINY = float(np.finfo(np.float32).tiny)
"""What float32 tells from 0."""

# --- the server ----------------------------------------------------------------------------------


def upload(client_id: int, scores: Any) -> Upload:
    return Upload(client_id, {"softmax": np.float32(scores)}, samples=1 + 98 * client_id)


def consensus(*answers: Any, robust: str = "none", **options: Any) -> np.ndarray:
    """What clients are sent when these have answered on the only public rows."""
    strategy, clients = DSFL(**options), roster(3, classes=2)
    strategy.prepare(clients, RunConfig(robust=robust))
    clients.public_samples = {0: {"inputs": np.zeros((len(answers[0]), 2), np.float32)}}
    uploads = [upload(client_id, scores) for client_id, scores in enumerate(answers)]
    after = strategy.aggregate(strategy.initial(clients), uploads, 1)
    return strategy.download_for(member(0), after, 2)["consensus"]


@pytest.mark.parametrize("temperature", [0.001, 0.01, 0.1, 1.0, 1e9])
def test_entropy_reduction_equals_its_formula(temperature):
    """Of two classes, softmax is the logistic function of their difference. The lowest temperature there may be is far
    from overflow."""
    scores = generator(0, "scores").dirichlet(np.ones(2), (3, 20))
    mean = scores.mean(0)
    found = consensus(*scores, aggregation="era", temperature=temperature)
    np.testing.assert_allclose(
        found[:, 0], 1 / (1 + np.exp(-(mean[:, 0] - mean[:, 1]) / temperature)), rtol=1e-4, atol=TINY
    )
    assert np.isfinite(found).all()


def test_the_median_of_scores_is_the_point_of_least_summed_distance():
    """Found by scipy on the simplex; the medians of single scores, scaled, would be (0.25, 0.375, 0.375)."""
    scores = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5]])
    summed = minimize(lambda x: np.linalg.norm(scores - [*x, 1 - x.sum()], axis=1).sum(), [0.3, 0.3], tol=1e-9)
    found = consensus(*scores[:, None], robust="median", aggregation="sa")
    np.testing.assert_allclose(found, [[*summed.x, 1 - summed.x.sum()]], atol=2e-3)


# --- a client ------------------------------------------------------------------------------------


def tiny(**options: Any) -> DSFLClient:
    """Samples (1, 0) of class 0 and (0, 1) of class 1, both public and all that there is; W = 0; SGD of rate 0.1."""
    return DSFLClient(
        linear_node(np.eye(2), [0, 1], [[0.0, 0.0], [0.0, 0.0]], public=2, **options.pop("keys", {})), **options
    )


def learnt(client: DSFLClient, rows: list[int], targets: Any, asked: list[int]) -> tuple[np.ndarray, dict[str, Any]]:
    download = [np.int32(rows), np.float32(targets).reshape(len(rows), 2), np.int32(asked)]
    upload, metrics = fit(client, download, 2)
    return upload["softmax"], metrics


def test_one_round_by_hand():
    """Digested is (1, 0) with the scores (3/4, 1/4). W = 0 has even odds: a distance of ln 2;
    the step is 0.1 (1/4, -1/4) in the first column. The own batch then has logits (0.025, -0.025) for (1, 0),
    odds q = 1 / (1 + e^0.05) against it, and even ones for (0, 1): half of 0.1 times each.
    """
    client = tiny()
    answers, metrics = learnt(client, [0], [[0.75, 0.25]], [1, 0])
    assert metrics["digest-loss"] == pytest.approx(log(2), rel=1e-6)
    assert metrics["train-loss"] == pytest.approx((log(1 + exp(-0.05)) + log(2)) / 2, rel=1e-6)
    first, second = 0.025 + 0.05 / (1 + exp(0.05)), 0.025
    np.testing.assert_allclose(client.node.model.head.weight.detach(), [[first, -second], [-first, second]], rtol=1e-5)
    sure = [1 / (1 + exp(2 * second)), 1 / (1 + exp(-2 * first))]
    np.testing.assert_allclose(answers[:, 0], sure, rtol=1e-5)


# --- whole runs ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_simple_aggregation_is_fedmd(ended):
    """Of FedMD that averages scores, does not pre-train and digests by the divergence, which has the slope of the
    cross-entropy: to rounding."""
    fedmd = {"pretrain-epochs": 0, "pretrain-private-epochs": 0, "consensus": "softmax", "digest": "kl"}
    found = [
        ended(algorithm=name, rounds=3, models="mlp,fedhe:6", **{f"{name}.{key}": value for key, value in own.items()})[
            1
        ]
        for name, own in (
            ("fedmd", {**fedmd, "public-samples": 20}),
            ("dsfl", {"aggregation": "sa", "public-samples": 20}),
            ("dsfl", {"aggregation": "era", "public-samples": 20}),
        )
    ]
    for other, near in ((found[1], True), (found[2], False)):
        pairs = [
            (one[key], two[key]) for one, two in zip(found[0], other, strict=True) for key in one.keys() & two.keys()
        ]
        assert all(torch.allclose(*pair, rtol=0, atol=1e-4) for pair in pairs) is near
