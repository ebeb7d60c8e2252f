"""FedDF: its groups and its distillation by hand, against a slow twin."""

from copy import deepcopy
from math import cos, pi
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.members import truthful
from fixtures.twins import descend, kl
from torch import nn

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec, Samples
from hetfl_flwr.data.samples import Arrays as Stored
from hetfl_flwr.errors import FederationError
from hetfl_flwr.learning.training import outputs
from hetfl_flwr.models import SplitModel, build_model
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.strategy import Upload
from strategies import feddf
from strategies.feddf import FedDF

# --- distillation --------------------------------------------------------------------------------


def table(rows: Any) -> Samples:
    inputs = torch.tensor(rows, dtype=torch.float32)
    arrays = Stored(
        DataSpec((inputs.shape[1],), 2), inputs, torch.zeros(len(inputs), dtype=torch.int64), 1, 1.0, torch.zeros(1)
    )
    return Samples(arrays, torch.arange(len(inputs)))


def linear(weight: Any) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=False)
    layer.weight.data = torch.tensor(weight, dtype=torch.float32)
    return layer


def test_one_step_by_hand():
    """The student's logits of (2, 0) are (0, 0), the target's (1, 0): the slope of KL(t || s) is (s - t) x^T, below 0
    for class 0. Adam's first step is the rate against the slope's sign, and none where the slope is 0."""
    student = linear([[0, 3], [0, 4]])
    strategy = FedDF(server_steps=1, server_learning_rate=0.25)
    steps = strategy.distil(student, table([[2, 0]]), torch.tensor([[1.0, 0.0]]), generator(0))
    assert steps == 1
    np.testing.assert_allclose(student.weight.detach(), [[0.25, 3], [-0.25, 4]], rtol=1e-6)


def test_steps_equal_those_of_a_slow_twin(monkeypatch):
    """The rate falls as a cosine; a fifth of the samples is held out. Of the students that agree with most of these the
    nearest one is kept, which here is none that first agreed with so many."""
    draw = generator(3, "data")
    inputs, targets = (torch.from_numpy(draw.normal(size=(20, n))) * scale for n, scale in ((3, 1), (4, 3)))
    student = linear(draw.normal(size=(4, 3)).tolist())
    twin = deepcopy(student).double()
    adam = torch.optim.Adam(twin.parameters())
    monkeypatch.setattr(feddf, "BATCH", 6)
    strategy = FedDF(server_steps=30, server_learning_rate=0.5, patience=20)
    taken = strategy.distil(student, table(inputs.tolist()), targets.float(), generator(1, "draw"))

    def nearness(rows: Any) -> tuple[float, float]:
        found, taught = twin(inputs[rows]).softmax(1), targets[rows].softmax(1)
        return float((found.argmax(1) == taught.argmax(1)).double().mean()), -float(kl(taught, found).mean())

    rng = generator(1, "draw")
    order = rng.permutation(20)
    held, rows = order[:4], order[4:]
    best, kept, at, step, rises = nearness(held), twin.weight.detach().clone(), 0, 0, [0]
    batches: list[Any] = []
    while step < 30 and step - rises[-1] < 20:
        if not batches:
            shuffled = rng.permutation(16)
            batches = [shuffled[k : k + 6] for k in range(0, 16, 6)]
        chosen = rows[batches.pop(0)]
        adam.param_groups[0]["lr"] = 0.5 * (1 + cos(pi * step / 30)) / 2
        descend(kl(targets[chosen].softmax(1), twin(inputs[chosen]).softmax(1)).mean(), adam)
        step += 1
        if step % 2 == 0 and (found := nearness(held)) > best:
            rises += [step] * (found[0] > best[0])
            best, kept, at = found, twin.weight.detach().clone(), step
    assert taken == step
    assert at not in (*rises, step)
    np.testing.assert_allclose(student.weight.detach(), kept, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_targets_that_are_not_finite_change_no_student(value):
    student = linear([[1, 2], [3, 4]])
    targets = torch.zeros(10, 2)
    targets[:, 0] = value
    FedDF(server_steps=50).distil(student, table([[1, 2]] * 10), targets, generator(0))
    assert student.weight.tolist() == [[1, 2], [3, 4]]


def test_logits_are_those_of_evaluation_mode():
    model = nn.Sequential(nn.Dropout(0.9), linear([[3, 0], [0, 3]]))
    assert outputs(model, table([[1, 2]])).tolist() == [[3, 6]]
    assert model.training


# --- the server ----------------------------------------------------------------------------------


def small(spec: DataSpec) -> SplitModel:
    return SplitModel(nn.Identity(), nn.Linear(2, spec.classes, bias=False))


def deep(spec: DataSpec) -> SplitModel:
    return SplitModel(nn.Linear(2, 3), nn.Linear(3, spec.classes))


SMALL, DEEP = "test_feddf:small", "test_feddf:deep"


def its(client_id: int, built: str = SMALL, **said: Any) -> Member:
    return truthful(client_id, built, **said)


def server(*members: Member, robust: str = "none", **hyper_parameters: Any) -> tuple[FedDF, dict[str, Any]]:
    strategy = FedDF(**hyper_parameters)
    strategy.prepare(
        Roster(members), RunConfig(algorithm="feddf", models=f"{SMALL},{DEEP}", normalize="none", robust=robust)
    )
    rows = generator(0, "public").normal(size=(3, 8, 2)).astype(np.float32)
    strategy.roster.public_samples = {k: {"inputs": block} for k, block in enumerate(rows)}
    return strategy, dict(strategy.initial(strategy.roster))


def drawn(strategy: FedDF, members: list[Member]) -> list[Upload]:
    """Uploads of random weights."""
    draw = generator(3, "weights")
    uploads = []
    for one in members:
        specs = strategy.upload_spec(one).arrays
        arrays = {spec.name: draw.normal(size=spec.shape).astype(np.float32) for spec in specs}
        uploads.append(Upload(one.client_id, arrays, 1))
    return uploads


def filled(strategy: FedDF, one: Member, value: float, samples: int = 1) -> Upload:
    arrays = {spec.name: np.full(spec.shape, value, np.float32) for spec in strategy.upload_spec(one).arrays}
    return Upload(one.client_id, arrays, samples)


@pytest.mark.parametrize(("robust", "small"), [("none", 5), ("median", 6)])
def test_each_group_has_the_mean_of_its_own_weighted_by_samples(robust, small):
    """(2 x 2 + 1 x 6 + 5 x 6) / 8 = 5, or the median of 2, 6 and 6; the group of one client has that one's weights."""
    members = [its(0), its(1, DEEP), its(2), its(3)]
    strategy, state = server(*members, server_steps=0, robust=robust)
    uploads = [filled(strategy, *one) for one in zip(members, (2, 9, 6, 6), (2, 7, 1, 5), strict=True)]
    found = strategy.aggregate(state, uploads, 1)
    deep = {"body.weight", "body.bias", "head.weight", "head.bias"}
    assert {name: set(array.ravel().tolist()) for name, array in found.items()} == {
        f"{SMALL}/head.weight": {small},
        **{f"{DEEP}/{name}": {9.0} for name in deep},
    }
    assert strategy.download_for(members[1], found, 2).keys() == deep


@pytest.mark.parametrize("steps", [0, 20])
def test_multi_krum_judges_models_of_all_groups_by_their_logits(steps):
    """Client 1, one of two with its model, says the opposite of the others: as if it had sent nothing. The deep one is
    alone with its model, and agrees with the small ones."""
    members = [its(0), its(1), its(2, DEEP), its(3), its(4)]
    learnt = []
    for robust, who in (("multikrum:1", (0, 1, 2, 3, 4)), ("none", (0, 2, 3, 4))):
        strategy, state = server(*members, server_steps=steps, server_learning_rate=0.1, robust=robust)
        uploads = []
        for one in (members[k] for k in who):
            right = generator(7, "right").normal(size=(3, 2)).astype(np.float32)
            drawn = {spec.name: np.zeros(spec.shape, np.float32) for spec in strategy.upload_spec(one).arrays}
            if one.model == DEEP:
                drawn["body.weight"][:2, :2] = np.eye(2)
                drawn["head.bias"][:] = 50  # of all classes alike, which says nothing
            drawn["head.weight"][:, :2] = right * (-1 if one.client_id == 1 else 1 + one.client_id / 10)
            uploads.append(Upload(one.client_id, drawn, 1))
        learnt.append(strategy.aggregate(state, uploads, 1))
    for name, array in learnt[0].items():
        np.testing.assert_array_equal(array, learnt[1][name])


def test_a_group_whose_models_are_all_left_out_goes_on_from_where_it_was():
    members = [its(0), its(1), its(2), its(3, DEEP)]
    strategy, state = server(*members, server_steps=0, robust="multikrum:1")
    uploads = [filled(strategy, *one) for one in zip(members, (1, 1, 1, 50), strict=True)]
    uploads[3].arrays["head.weight"][0] = -50
    state = {name: array + 1 for name, array in state.items()}  # some rounds later
    found = strategy.aggregate(state, uploads, 2)
    assert strategy.left_out.taken() == [3]
    assert all((found[name] == array).all() for name, array in state.items() if name.startswith(DEEP))
    assert (found[f"{SMALL}/head.weight"] == 1).all()


def test_students_learn_from_the_models_of_all_groups(monkeypatch):
    """Each group's student ends where distillation of the mean of all three clients' logits brings it. Alone in its
    group, the deep model learns from the small ones."""
    monkeypatch.setattr(feddf, "BATCH", 7)
    members = [its(0), its(1, DEEP), its(2)]
    strategy, state = server(*members, server_steps=40, patience=40, server_learning_rate=0.1)
    uploads = drawn(strategy, members)
    found = strategy.aggregate(state, uploads, 4)
    rows = np.concatenate([block["inputs"] for block in strategy.roster.public_samples.values()])
    samples, logits = table(rows.tolist()), []
    for one, upload in zip(members, uploads, strict=True):
        teacher = loaded(one.model, upload.arrays)
        logits.append(teacher(torch.from_numpy(rows)).detach().double().numpy())
    targets = torch.from_numpy(np.mean(logits, axis=0)).float()
    starts = {
        DEEP: uploads[1].arrays,
        SMALL: {"head.weight": (uploads[0].arrays["head.weight"] + uploads[2].arrays["head.weight"]) / 2},
    }
    for name, start in starts.items():
        student = loaded(name, start)
        assert strategy.distil(student, samples, targets, generator(0, 4, "distillation")) > 0
        for entry, tensor in student.state_dict().items():
            np.testing.assert_allclose(found[f"{name}/{entry}"], tensor, rtol=1e-4, atol=1e-5)
            assert not np.allclose(found[f"{name}/{entry}"], start[entry], atol=1e-3)


@pytest.mark.parametrize("value", [1e5, 1e38])
def test_one_alone_with_its_model_teaches_nobody_if_its_logits_are_far_larger(value, caplog):
    """Nobody else has arrays of its names, and logits of 1e5 are all that a mean with them says; beyond 1e38 it is not
    finite, and nobody would learn."""
    members = [its(0), its(1), its(2), its(3, DEEP)]
    taught = []
    for body in (1.0, value):
        strategy, state = server(*members, server_steps=40, server_learning_rate=0.1)
        uploads = drawn(strategy, members)
        uploads[3].arrays["body.weight"][:] *= np.float32(body)
        found = strategy.aggregate(state, uploads if body == value else uploads[:3], 1)
        taught.append(found[f"{SMALL}/head.weight"])
    np.testing.assert_array_equal(*taught)
    [line] = [text for text in caplog.messages if "left out of the ensemble" in text]
    assert line.startswith(f"feddf: client 3 ({DEEP}): array 'logits' has size ")


def loaded(name: str, arrays: dict[str, Any]) -> SplitModel:
    model = build_model(name, DataSpec((2,), 3), seed=0)
    model.load_state_dict({entry: torch.from_numpy(array) for entry, array in arrays.items()})
    return model


def test_one_upload_is_no_ensemble_and_a_group_without_any_stays_as_it_is(monkeypatch):
    """Nothing is distilled: its own logits would change nothing."""
    monkeypatch.setattr(FedDF, "distil", lambda *args: pytest.fail("distils"))
    members = [its(0), its(1, DEEP)]
    strategy, state = server(*members)
    found = strategy.aggregate(state, [filled(strategy, members[0], 2)], 1)
    assert (found[f"{SMALL}/head.weight"] == 2).all()
    assert all((found[name] == array).all() for name, array in state.items() if name.startswith(DEEP))


def test_one_that_joins_with_a_new_model_starts_from_its_initial_weights():
    strategy, state = server(its(0), its(1))
    late = its(2, DEEP)
    strategy.check(Roster([*strategy.roster, late]))
    strategy.roster.add(late)
    sent = strategy.download_for(late, state, 2)
    assert strategy.upload_spec(late).check_named(sent, "server")
    found = strategy.aggregate(state, [filled(strategy, late, 0.5)], 2)
    assert (strategy.download_for(late, found, 3)["head.bias"] == 0.5).all()


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("liar", [0, 1])
def test_one_client_whose_weights_are_no_model_s_of_its_name_is_named_and_keeps_nobody_from_the_run(liar, caplog):
    members = [its(k, **({"weights": "other"} if k == liar else {})) for k in range(2)]
    strategy, state = server(*members)
    assert strategy.upload_spec(members[1 - liar]).names == strategy.upload_spec(members[liar]).names
    assert f"{SMALL}/head.weight" in state
    [line] = {line for line in caplog.messages if "run other code" in line}
    assert line.startswith(f"client {liar} ({SMALL}): its weights differ")


def test_models_that_only_those_had_who_are_gone_are_not_kept():
    """A node that comes back again and again, each time with another model."""
    strategy, state = server(its(0), its(1))
    for model in ("mlp", "mlp@0.5", "mlp@0.25"):
        strategy.check(Roster([its(0), its(1), its(2, model)]))
        assert len(strategy.models) == 2
    assert set(strategy.download_for(its(0), state, 1)) == set(strategy.upload_spec(its(0)).names)


def test_one_client_that_says_it_has_what_cannot_be_built_keeps_nobody_from_the_run(refusal):
    """Nor those who join later."""
    liar = its(2, model="sys:exit")
    strategy, state = server(its(0), its(1), liar)
    assert strategy.download_for(liar, state, 1) == {}
    assert strategy.upload_spec(liar).names == ()
    uploads = [filled(strategy, its(0), 2.0), Upload(2, {}, 1)]
    assert (strategy.aggregate(state, uploads, 1)[f"{SMALL}/head.weight"] == 2).all()
    for late in (its(3), its(4, DEEP)):
        strategy.check(Roster([its(0), its(1), liar, late]))
    assert strategy.upload_spec(its(4, DEEP)).names
    assert "client 1" in refusal(FederationError, server, liar, its(1, model="sys:exit"))
