"""What every client side gets from its base: a kept best model, validation and domain scores, state by name."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from fixtures.federations.nodes import linear_node

from clients.local import LocalClient
from hetfl_flwr import SEEN
from hetfl_flwr.client import Metrics
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.methods import find, names
from hetfl_flwr.node.holder import Holder
from hetfl_flwr.wire.messages import EXAMPLES, ROUND
from hetfl_flwr.wire.spec import Arrays
from simulations.testing.contract import entries

HALF_RIGHT = [[1.0, 0.0], [0.0, 1.0]]
"""Weights under which input (1, 0) is class 0 and input (0, 1) is class 1."""


def evaluated(node: Any, weight: list[list[float]]) -> Metrics:
    """Save a model as if it had been trained to these weights, and let a client built anew measure it."""
    client = LocalClient(node)
    holder = Holder(client)
    holder.restore()
    client.node.model.head.weight.data = torch.tensor(weight)
    holder.save(1)
    loss, samples, metrics = LocalClient(node).evaluate([], {ROUND: 1})
    return {**metrics, "loss": loss, EXAMPLES: samples}


def test_with_keep_best_a_client_reports_its_best_model_on_validation(make_config):
    """Validation and test samples are the same two here. Weights that get both right (accuracy 1) come between weights
    that get one right; those that only equal the best, with a higher loss, do not replace it."""
    node = linear_node([[1.0, 0.0], [0.0, 1.0]], [0, 1], HALF_RIGHT, keep_best=True)
    both, one = [[2.0, 0.0], [0.0, 2.0]], [[2.0, 3.0], [0.0, 2.0]]
    assert evaluated(node, one)["accuracy"] == 0.5
    best = evaluated(node, both)
    assert best["accuracy"] == best["validation-accuracy"] == 1.0
    assert evaluated(node, one) == best
    assert evaluated(node, HALF_RIGHT) == best
    kept = node.read_state().tensors
    assert kept["best.head.weight"].tolist() == both
    assert kept["model.head.weight"].tolist() == HALF_RIGHT


def test_a_state_is_of_the_last_message_though_its_model_was_measured_in_an_earlier_round():
    """An asynchronous run numbers its messages: round 2 may come after the ninth."""
    node = linear_node([[1.0, 0.0], [0.0, 1.0]], [0, 1], HALF_RIGHT, keep_best=True)
    holder = Holder(LocalClient(node))
    holder.restore()
    holder.save(9)
    Holder(LocalClient(node)).measure({}, 2)
    state = node.read_state()
    assert "best.head.weight" in state.tensors
    assert state.round == 9


class Alternating(LocalClient):
    """Trains with one optimizer in odd rounds and with another in even ones, and counts its rounds from 10 on."""

    def __init__(self, node: Any) -> None:
        super().__init__(node)
        self.numbers["rounds"] = 10

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        self.numbers["rounds"] += 1
        optimizer = self.optimizer("odd" if round % 2 else "even")

        def loss(inputs: Any, labels: Any) -> Any:
            return self.node.data_loss(self.node.model(inputs), labels)

        samples, _ = self.train(self.batches(round), loss, optimizer)
        return {}, {SEEN: samples}


def test_numbers_and_moments_last_whenever_they_are_used():
    """Also the numbers of the constructor, if the client is evaluated before its first round."""
    node = linear_node([[1.0, 0.0], [0.0, 1.0]], [0, 1], HALF_RIGHT, keep_best=True, optimizer="adam")
    Holder(Alternating(node)).measure({}, 0)
    for round in (1, 2, 3):
        Holder(Alternating(node)).learn({}, round)
    state = node.read_state()
    assert state.numbers["rounds"] == 13
    assert [float(state.tensors[f"{name}.0.step"]) for name in ("odd", "even")] == [2, 1]


def test_the_best_model_is_not_chosen_by_test_samples():
    """Of the test samples the labels are those of the validation samples the other way round."""
    right, wrong = [[2.0, 0.0], [0.0, 2.0]], [[0.0, 2.0], [2.0, 0.0]]
    node = linear_node([[1.0, 0.0], [0.0, 1.0]], [0, 1], HALF_RIGHT, keep_best=True)
    test = node.data.validation.like(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 0]))
    node = replace(node, data=replace(node.data, test=test))
    assert [evaluated(node, weight)["accuracy"] for weight in (right, wrong)] == [0.0, 0.0]
    assert node.read_state().tensors["best.head.weight"].tolist() == right


def test_the_best_on_all_domains_validation_samples(make_config):
    """Own validation: (1, 0) is 0 and (0, 1) is 1; another domain's, twice as many: all four are class 1.

    `both` is right on the own two (2 of 6 at least, and on two of the other four): 4 of 6. `ones` calls everything
    class 1: 1 of the own two, but all of the other four: 5 of 6.
    """
    both, ones = [[2.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [2.0, 2.0]]
    kept = {}
    for best_on in ("own", "domains"):
        node = linear_node([[1.0, 0.0], [0.0, 1.0]], [0, 1], HALF_RIGHT, keep_best=True, best_on=best_on)
        other = node.data.validation.like(torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 2), torch.ones(4, dtype=torch.int64))
        node = replace(node, data=replace(node.data, others_validation=(other,)))
        scores = [evaluated(node, weight) for weight in (both, ones)]
        kept[best_on] = node.read_state().tensors["best.head.weight"].tolist()
    assert kept == {"own": both, "domains": ones}
    assert [score["validation-acc"] for score in scores] == pytest.approx([4 / 6, 5 / 6])


def test_a_client_without_test_samples_has_no_accuracy_rather_than_one_of_zero():
    node = linear_node([[1.0, 0.0], [0.0, 1.0]], [0, 1], HALF_RIGHT)
    untested = replace(node, data=replace(node.data, test=node.data.test.first(0)))
    assert evaluated(untested, HALF_RIGHT).keys() == {"loss", EXAMPLES, "validation-accuracy"}
    assert "accuracy" in evaluated(node, HALF_RIGHT)


def test_training_goes_on_from_the_newest_model_not_from_the_best(make_config):
    """A round of SGD with rate 0.1 from W = 2 I on (1, 0) and (0, 1): softmax(2, 0) = (0.880797, 0.119203), so each
    entry of W moves by 0.1 * 0.119203 / 2 = 0.005960."""
    node = linear_node([[1.0, 0.0], [0.0, 1.0]], [0, 1], HALF_RIGHT, keep_best=True)
    evaluated(node, [[9.0, 0.0], [0.0, 9.0]])
    evaluated(node, [[2.0, 0.0], [0.0, 2.0]])
    LocalClient(node).fit([], {ROUND: 1})
    assert node.model.head.weight[0].tolist() == pytest.approx([2.005960, -0.005960], abs=1e-6)
    assert node.read_state().tensors["best.head.weight"].tolist() == [[9.0, 0.0], [0.0, 9.0]]


def test_keep_best_needs_validation_samples(make_config, make_node, refusal):
    config = make_config(algorithm="local", keep_best=True, validation_fraction=0.0)
    assert "keep-best = true" in refusal(ConfigError, LocalClient, make_node(config))


def test_scores_over_domains_are_those_of_each_domain_s_test_samples(make_config, run_federation):
    """Three domains of equal size, a client each: ACC = (BWT + 2 FWT) / 3, and BWT is the accuracy on the own one."""
    run = run_federation(make_config(algorithm="local", dataset="rotated-digits", models="mlp", clients=3))
    last, summary = entries(run)[-1], json.loads((run / "summary.json").read_text())
    for values in last["clients"].values():
        assert values["acc"] == pytest.approx((values["accuracy"] + 2 * values["fwt"]) / 3)
    for name in ("acc", "fwt"):
        expected = sum(values[name] for values in last["clients"].values()) / 3
        assert summary[name] == last[name] == pytest.approx(expected)
    assert summary["bwt"] == last["bwt"] == last["accuracy"] == summary["accuracy"]
    assert summary["fwt"] < summary["bwt"]


def test_domains_count_by_their_samples():
    """The own test: 1 of 1 right. Others: 1 of 2 and 0 of 3 right, so FWT = 1 / 5 and ACC = 2 / 6.

    So does the paper: on PACS, FedH2L on photo has BWT 99.80, FWT 80.66 and ACC 83.86. Photo is 1,670 of the 9,991
    images, and (1670 * 99.80 + 8321 * 80.66) / 9991 = 83.86, where the plain mean of four domains would be 85.45.
    """
    node = linear_node([[1.0, 0.0]], [0], HALF_RIGHT)
    others = [([[1.0, 0.0], [0.0, 1.0]], [0, 0]), ([[1.0, 0.0]] * 3, [1, 1, 1])]
    samples = tuple(node.data.test.like(torch.tensor(inputs), torch.tensor(labels)) for inputs, labels in others)
    node = replace(node, data=replace(node.data, others=samples))
    _, _, metrics = LocalClient(node).evaluate([], {ROUND: 1})
    assert (metrics["accuracy"], metrics["fwt"], metrics["acc"]) == (1.0, pytest.approx(0.2), pytest.approx(1 / 3))


@pytest.mark.parametrize(("own", "scores"), [(2, {"acc": 0.5}), (0, {})])
def test_domains_without_samples_have_no_score(own, scores):
    """The own test: 1 of 2 right, or none to measure; the other domain has no samples."""
    node = linear_node([[1.0, 0.0], [0.0, 1.0]], [0, 0], HALF_RIGHT)
    data = replace(node.data, test=node.data.test.first(own), others=(node.data.test.first(0),))
    _, _, metrics = LocalClient(replace(node, data=data)).evaluate([], {ROUND: 1})
    assert {name: metrics[name] for name in ("acc", "fwt") if name in metrics} == scores


def test_local_work_can_be_multiplied_and_counted_in_passes():
    """Five samples in batches of two: a pass is 2 batches (the last holds 3), so 3 batches are a pass and one more."""
    node = linear_node([[float(n), 0.0] for n in range(5)], [0] * 5, HALF_RIGHT, batch_size=2, local_batches=3)
    client = LocalClient(node)
    assert [len(batches) for batches in client.epochs(1)] == [2, 1]
    assert [len(batches) for batches in client.epochs(1, times=2)] == [2, 2, 2]
    assert len(list(client.batches(1, times=3))) == 9
    assert max(int(rows.max()) for rows in client.batches(1, samples=40, times=20)) > 5
    whole = linear_node([[float(n), 0.0] for n in range(5)], [0] * 5, HALF_RIGHT, batch_size=2, local_batches=0)
    assert [len(batches) for batches in LocalClient(whole).epochs(1, times=3)] == [2, 2, 2]
    flat = [rows.tolist() for rows in client.batches(1)]
    assert flat == [rows.tolist() for batches in client.epochs(1) for rows in batches]


@pytest.mark.parametrize("algorithm", names())
def test_clients_of_one_architecture_begin_alike_where_the_method_says_so(algorithm, make_config, make_node):
    """With the server's weights of that architecture; else each draws its own."""
    config = make_config(algorithm=algorithm, models="mlp")
    first, second = (list(make_node(config, client_id).model.state_dict().values()) for client_id in (0, 1))
    alike = [torch.equal(one, other) for one, other in zip(first, second, strict=True)]
    assert all(alike) if find(algorithm).client.starts_alike else not any(alike)
