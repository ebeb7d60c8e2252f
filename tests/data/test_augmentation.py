"""Augmented images: what may change and what may not; normalised colours; models assigned at random."""

from collections import Counter

import pytest
import torch
from fixtures.tiers import exhaustive

from clients.local import LocalClient
from hetfl_flwr.data import Augmented, DataSpec, Samples, Split, load_client_data
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.models import assign, drawn_order


def images(side: int = 16, count: int = 40) -> Samples:
    """Images that are 1 throughout but for their first column, which is 2."""
    pixels = torch.ones(count, 1, side, side)
    pixels[..., 0] = 2
    arrays = Arrays(DataSpec((1, side, side), 2), pixels, torch.arange(count) % 2, count, 1.0, torch.zeros(1))
    return Samples(arrays, torch.arange(count))


def augmented(samples, kind):
    return Augmented(samples.arrays, samples.rows, kind)


def test_a_flip_mirrors_about_every_second_image():
    torch.manual_seed(0)
    seen, labels = augmented(images(count=400), "flip").batch(torch.arange(400))
    mirrored = seen[:, 0, 0, -1] == 2
    assert torch.equal(mirrored, seen[:, 0, 0, 0] == 1)
    assert 150 < int(mirrored.sum()) < 250
    assert torch.equal(labels, images(count=400).labels)


def test_a_crop_shifts_by_an_eighth_of_each_side_at_most_and_fills_up_with_zeros():
    """Shifts of 16 pixels go from -2 to 2; what has come in is 0. Rows and columns are shifted each for itself."""
    torch.manual_seed(0)
    seen, _ = augmented(images(count=400), "crop").batch(torch.arange(400))
    assert seen.shape == (400, 1, 16, 16)
    inside = (seen > 0).float()
    columns, rows = inside.amax((1, 2)), inside.amax((1, 3))
    missing = {(16 - int(c.sum()), 16 - int(r.sum())) for c, r in zip(columns, rows, strict=True)}
    assert missing == {(c, r) for c in (0, 1, 2) for r in (0, 1, 2)}


def test_one_seed_gives_one_batch_and_the_next_batch_another():
    torch.manual_seed(3)
    first, second = (augmented(images(), "crop-flip").batch(torch.arange(8))[0] for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(augmented(images(), "crop-flip").batch(torch.arange(8))[0], first)
    assert not torch.equal(first, second)
    assert augmented(images(), "crop").batch(torch.arange(0))[0].shape == (0, 1, 16, 16)


def test_clients_train_on_augmented_images_and_are_measured_on_their_own(make_config, make_node, monkeypatch):
    config = make_config(algorithm="local", augment="flip", models="mlp")
    node, seen = make_node(config, 0), []
    batch = Augmented.batch
    monkeypatch.setattr(Augmented, "batch", lambda self, rows: seen.append(len(rows)) or batch(self, rows))
    client = LocalClient(node)
    _, _, metrics = client.fit([], {"server-round": 1})
    assert sum(seen) == metrics["samples-seen"] > 0
    client.evaluate([], {})
    assert sum(seen) == metrics["samples-seen"]


def test_tables_cannot_be_augmented(make_config, make_node, refusal):
    config = make_config(dataset="breast-cancer", augment="crop", models="mlp")
    assert "augment" in refusal(ConfigError, make_node, config, 0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedhe", exhaustive("fedavg")])
def test_a_run_is_the_same_for_any_number_of_workers_and_unlike_one_without(
    algorithm, make_config, run_federation, tmp_path
):
    ends = {}
    for name, workers, augment in (("one", 1, "crop-flip"), ("two", 2, "crop-flip"), ("none", 1, "none")):
        keys = {"algorithm": algorithm, "augment": augment, "models": "mlp", "output_dir": str(tmp_path / name)}
        folder = run_federation(make_config(**keys), workers=workers)
        ends[name] = (folder / "knowledge.safetensors").read_bytes()
    assert ends["one"] == ends["two"] != ends["none"]


def test_standard_digits_and_rotated_ones(make_config):
    for dataset in ("digits", "rotated-digits"):
        split = Split(dataset=dataset, clients=4, seed=0, normalize="standard", partition="iid")
        train = torch.cat([load_client_data(split, client).train.batch(torch.arange(200))[0] for client in range(4)])
        assert abs(float(train.mean())) < 0.05
        assert float(train.std()) == pytest.approx(1, abs=0.05)


def test_models_are_assigned_to_clients_in_a_drawn_order_that_every_node_knows(make_config, make_node):
    """As many clients have each model; with two classes a client by turns, those of one model have not all the same."""
    orders = [drawn_order(seed, 10) for seed in range(5)]
    assert sorted(orders[0]) == list(range(10))
    assert len(set(orders)) == 5
    names = [assign("mlp,lenet5", client, orders[0]) for client in range(10)]
    assert Counter(names) == {"mlp": 5, "lenet5": 5}
    assert names != [assign("mlp,lenet5", client) for client in range(10)]
    config = make_config(clients=4, models="mlp,lenet5", assignment="random", seed=1)
    names = [make_node(config, client).model_name for client in range(4)]
    assert names == [assign("mlp,lenet5", client, drawn_order(1, 4)) for client in range(4)]
