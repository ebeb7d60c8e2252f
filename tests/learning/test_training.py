import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hetfl_flwr.data import DataSpec, Samples
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.errors import DivergedError
from hetfl_flwr.learning.optimizers import SGD
from hetfl_flwr.learning.training import EVALUATION_BATCH, Terms, draw_batches, evaluate, make_optimizer, train
from hetfl_flwr.seeding import generator


def samples(inputs, labels, classes=2):
    inputs = torch.tensor(inputs, dtype=torch.float32).reshape(len(labels), 1)
    arrays = Arrays(DataSpec((inputs.shape[1],), classes), inputs, torch.tensor(labels), 1, 1.0, torch.zeros(()))
    return Samples(arrays, torch.arange(len(labels)))


def drawn(count, size, *, epochs=1, batches=0, seed=0):
    return [rows.tolist() for rows in draw_batches(generator(seed, "b"), count, size, epochs=epochs, batches=batches)]


@pytest.mark.parametrize(
    ("count", "size", "epochs", "batches", "sizes"),
    [
        (10, 4, 1, 0, [4, 4, 2]),
        (8, 4, 1, 0, [4, 4]),
        (9, 4, 1, 0, [4, 5]),  # a batch of one joins the one before it
        (5, 4, 2, 0, [5, 5]),
        (1, 4, 1, 0, [1]),  # nothing to join
        (3, 50, 2, 0, [3, 3]),
        (3, 1, 1, 0, [1, 1, 1]),  # asked for one by one
        (10, 4, 9, 2, [4, 4]),  # batches say how many, epochs do not matter
        (10, 4, 1, 5, [4, 4, 2, 4, 4]),
        (9, 4, 1, 3, [4, 5, 4]),
        (3, 50, 1, 3, [3, 3, 3]),
    ],
)
def test_batches_have_the_sizes_that_were_asked_for(count, size, epochs, batches, sizes):
    assert [len(rows) for rows in drawn(count, size, epochs=epochs, batches=batches)] == sizes


@pytest.mark.parametrize("name", ["adam", "amsgrad", "adamw", "sgd"])
def test_optimizers_step_as_torch_s_own(make_config, name):
    """Bit for bit over three steps, with weight decay and momentum; a gradient that is absent is left out."""
    config = make_config(optimizer=name, learning_rate=0.1, weight_decay=0.01, momentum=0.9)
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}.get(name, torch.optim.Adam)
    keys = {"momentum": 0.9} if name == "sgd" else {"amsgrad": name == "amsgrad"}
    mine, theirs = ([torch.nn.Parameter(torch.arange(1.0, 4.0)), torch.nn.Parameter(torch.ones(2))] for _ in range(2))
    optimizer = make_optimizer(config, mine)
    plain = kind(theirs, lr=0.1, weight_decay=0.01, fused=True, **keys)
    for step in range(3):
        for each, (weight, unused) in ((optimizer, mine), (plain, theirs)):
            each.zero_grad()
            assert weight.grad is None
            (weight ** (step + 2)).sum().backward()
            each.step()
            assert unused.grad is None
    assert torch.equal(mine[0], theirs[0])
    assert torch.equal(mine[1], torch.ones(2))
    assert mine[0].requires_grad


def linear(weight):
    model = nn.Linear(1, len(weight), bias=False)
    with torch.no_grad():
        model.weight[:] = torch.tensor(weight)[:, None]
    return model


@pytest.mark.parametrize(
    ("projection", "own", "distillation", "stepped"),
    [
        # no conflict: the sum of both
        *((projection, [1.0, 1.0], [0.0, 2.0], [1.0, 3.0]) for projection in ("none", "qp", "pcgrad")),
        # conflict, <own, taught> = -2: taught loses its part along own, (-2, 0); own loses its part along taught,
        # -2/8 * (-2, 2) = (0.5, -0.5), and has (0.5, 0.5) left
        ("none", [1.0, 0.0], [-2.0, 2.0], [-1.0, 2.0]),
        ("qp", [1.0, 0.0], [-2.0, 2.0], [1.0, 2.0]),
        ("pcgrad", [1.0, 0.0], [-2.0, 2.0], [0.5, 2.5]),
    ],
)
def test_two_terms_that_conflict_are_stepped_along_as_the_projection_says(projection, own, distillation, stepped):
    """A loss <w, own> + <w, taught> has these gradients everywhere; SGD of rate 1 takes what is left of them."""
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))

    def loss(inputs, labels):
        return Terms(weight @ torch.tensor(own), weight @ torch.tensor(distillation))

    optimizer = SGD([weight], lr=1.0)
    whole = float(weight.detach() @ (torch.tensor(own) + torch.tensor(distillation)))
    seen, mean = train(samples([1.0], [0]), [torch.arange(1)], optimizer, loss, projection=projection)
    torch.testing.assert_close(weight.detach(), torch.tensor([3.0, 4.0]) - torch.tensor(stepped))
    assert (seen, mean) == (1, pytest.approx(whole))


def test_train_equals_a_loop_written_by_hand_bit_for_bit(make_config, make_node):
    config = make_config(local_batches=0, local_epochs=2, models="lenet5")
    node, twin = make_node(config), make_node(config)
    loop, optimizer = twin.model, torch.optim.Adam(twin.model.parameters(), lr=0.001, fused=True)
    rng = generator(0, "loop")
    losses, count = 0.0, len(twin.data.train)
    for _ in range(2):
        for rows in torch.from_numpy(rng.permutation(count)).split(20):
            inputs, labels = twin.data.train.batch(rows)
            optimizer.zero_grad()
            loss = functional.cross_entropy(loop(inputs), labels)
            loss.backward()
            optimizer.step()
            losses += loss.item() * len(rows)

    batches = draw_batches(generator(0, "loop"), count, 20, epochs=2, batches=0)
    seen, mean = train(
        node.data.train,
        batches,
        make_optimizer(config, node.model.parameters()),
        lambda inputs, labels: functional.cross_entropy(node.model(inputs), labels),
    )
    assert count % 20 != 1
    assert seen == 2 * count
    assert mean == losses / (2 * count)
    assert all(torch.equal(node.model.state_dict()[name], value) for name, value in loop.state_dict().items())


def test_a_loss_that_is_not_finite_is_an_error_and_no_batch_is_no_step():
    model = linear([1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for value in (float("nan"), float("inf")):
        with pytest.raises(DivergedError, match="training diverged"):
            train(samples([1.0], [0]), [torch.tensor([0])], optimizer, lambda x, y, by=value: model(x).mean() * by)
    assert train(samples([1.0], [0]), [], optimizer, lambda x, y: x) == (0, 0.0)


def test_evaluation_by_hand():
    """Logits (0, x): class 1 is predicted for x > 0, the first class for a tie. x = 1, -1, 0 with labels 1, 1, 0.

    Right are the first and the third: 2/3. Cross-entropy log(1 + e^-1), log(1 + e), log 2 = 0.3133, 1.3133, 0.6931.
    Of 2048 + 1 samples with label 1 only the last is predicted right; no samples are no error.
    """
    measured = evaluate(linear([0.0, 1.0]), samples([1.0, -1.0, 0.0], [1, 1, 0]))
    assert (measured.samples, measured.accuracy) == (3, 2 / 3)
    assert measured.loss == pytest.approx((0.31326 + 1.31326 + 0.69315) / 3, abs=1e-5)
    count = 2 * EVALUATION_BATCH + 1
    measured = evaluate(linear([0.0, 1.0]), samples([-1.0] * (count - 1) + [1.0], [1] * count))
    assert (measured.samples, measured.accuracy) == (count, 1 / count)
    measured = evaluate(linear([0.0, 1.0]), samples([], []))
    assert (measured.loss, measured.accuracy, measured.samples) == (0.0, 0.0, 0)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_puts_the_model_s_mode_back_and_changes_nothing_in_it(training):
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = samples(np.arange(6.0).tolist(), [0, 1] * 3)
    assert evaluate(model, data) == evaluate(model, data)
    assert model.training is training
    assert all(layer.training is training for layer in model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
