import os
from time import process_time

import numpy as np
import pytest
import torch
from fixtures.data.loading import load_client
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from torchvision.transforms._presets import ImageClassification
from torchvision.transforms.functional import normalize

from hetfl_flwr.data import CATALOGUE, Reading, Samples, bundled, data_spec
from hetfl_flwr.data.domains import data_sets
from hetfl_flwr.errors import ConfigError, DataError
from simulations.cli.facts import datasets

DIGITS = {"dataset": "digits", "partition_id": 0, "num_partitions": 10, "seed": 0}


def load(**changes):
    return load_client(**(DIGITS | changes))


def rows(samples):
    return set(samples.rows.tolist())


def test_the_rows_of_all_clients_are_disjoint_and_are_all_there_is():
    sets = [
        rows(part)
        for k in range(10)
        for data in [load(partition_id=k, partition="dirichlet:0.5")]
        for part in (data.train, data.validation, data.test)
    ]
    assert sum(map(len, sets)) == len(set().union(*sets)) == 1797


def test_a_global_test_set_is_the_same_for_all_and_nobody_trains_on_it():
    first, second = (load(partition_id=k, test="global", num_partitions=2) for k in (0, 1))
    assert rows(first.test) == rows(second.test) == set(range(1437, 1797))
    assert rows(first.train) | rows(first.validation) | rows(second.train) | rows(second.validation) == set(range(1437))
    assert len(first.validation) == 72  # a tenth of 719


@pytest.mark.parametrize(
    ("clients", "validation", "test", "sizes"),
    [(599, 0.1, 0.2, (1, 1, 1)), (599, 0.0, 0.2, (2, 0, 1)), (3, 0.25, 0.5, (149, 150, 300))],
)
def test_a_client_of_three_or_more_gets_one_of_each_that_is_asked_for(clients, validation, test, sizes):
    """599 clients have 3 rows each; three have 599, of which 0.25 and 0.5 are 149.75 and 299.5."""
    data = load(num_partitions=clients, validation_fraction=validation, test_fraction=test)
    assert (len(data.train), len(data.validation), len(data.test)) == sizes


def test_inputs_are_scaled_to_one_and_labels_go_with_them():
    bunch = load_digits()
    by_pixels = {image.tobytes(): label for image, label in zip(bunch.images, bunch.target, strict=True)}
    data = load(normalize="none")
    inputs, labels = data.train.batch(torch.tensor([5, 3, 5]))
    assert (inputs.dtype, inputs.shape, labels.dtype) == (torch.float32, (3, 1, 8, 8), torch.int64)
    assert [by_pixels[(image * 16).double().numpy().tobytes()] for image in inputs] == labels.tolist()
    assert torch.equal(labels, data.train.labels[[5, 3, 5]])


def test_the_mean_image_of_the_training_split_is_taken_off():
    plain, centred = load(normalize="none"), load()
    split = load(normalize="none", num_partitions=1, test="global", validation_fraction=0.0).train
    everyone, _ = split.batch(torch.arange(len(split)))
    assert len(split) == 1437
    difference = plain.train.batch(torch.arange(4))[0] - centred.train.batch(torch.arange(4))[0]
    assert torch.allclose(difference, everyone.double().mean(dim=0).float().expand(4, -1, -1, -1), atol=1e-6)
    assert difference.abs().max() > 0.5


def test_the_mean_training_image_is_of_no_image_that_is_tested_on():
    """With three clients, the mean of their training images, and one array for all of them."""
    plain = [load(normalize="none", num_partitions=3, partition_id=k) for k in range(3)]
    trained = [k for client in plain for k in client.train.rows.tolist()]
    assert len(trained) == len(set(trained)) < 1300
    expected = plain[0].train.arrays.inputs[trained].double().mean(dim=0)[0] / 16
    several = [load(normalize="mean-training-image", num_partitions=3, partition_id=k) for k in range(3)]
    assert torch.allclose(several[0].test.arrays.centre[0].double(), expected, atol=1e-6)
    assert several[0].train.arrays is several[2].test.arrays
    assert not torch.allclose(several[0].train.arrays.centre, load(num_partitions=3).train.arrays.centre, atol=1e-4)


@pytest.mark.parametrize("dataset", ["digits", "digits-colour"])
def test_images_are_scaled_as_torchvision_does_for_its_pretrained_networks(dataset):
    """Torchvision's own preset is the oracle; grey takes the mean of the three colours' numbers."""
    preset = ImageClassification(crop_size=8)
    mean, deviation = torch.tensor(preset.mean), torch.tensor(preset.std)
    if dataset == "digits":
        mean, deviation = mean.mean(0, keepdim=True), deviation.mean(0, keepdim=True)
    plain, scaled = (
        load(dataset=dataset, normalize=how).test.batch(torch.arange(4))[0] for how in ("none", "imagenet")
    )
    assert torch.allclose(scaled, normalize(plain, mean.tolist(), deviation.tolist()), atol=1e-6)


def test_clients_share_one_array_whatever_they_ask_for():
    first, second = load(), load(partition_id=1, seed=3, normalize="none", partition="shards:2")
    assert first.train.arrays.inputs.data_ptr() == second.test.arrays.inputs.data_ptr()
    assert first.train.arrays.inputs.dtype == torch.uint8
    assert first.train.to("meta").arrays is load(partition_id=1).test.to("meta").arrays


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dataset": "digit"}, "'digits'"),
        *(({"partition_id": number}, f"partition-id {number}") for number in (10, -1)),
        ({"validation_fraction": 0.5, "test_fraction": 0.5}, "validation-fraction 0.5 and test-fraction 0.5"),
        ({"num_partitions": 599, "validation_fraction": 0.34, "test_fraction": 0.65}, "partition 0 of 599"),
        ({"dataset": "breast-cancer", "normalize": "imagenet"}, "'breast-cancer'"),
    ],
)
def test_bad_arguments_are_refused(changes, named, refusal, tmp_path):
    assert named in refusal(ConfigError, load, **changes)
    assert "none" in refusal(DataError, datasets, str(tmp_path / "none"))


@pytest.mark.skipif("HETFL_DATA_DIR" not in os.environ, reason="HETFL_DATA_DIR names no folder of data sets")
def test_the_catalogue_tells_the_truth_about_local_copies():
    """Save of the size of PACS, which a local copy may have reduced."""
    folder = os.environ["HETFL_DATA_DIR"]
    local = {row["name"] for row in datasets(folder) if row["where"] == "local"} - {"rotated-mnist"}
    for name in local:
        spec, domains = data_spec(name, Reading(folder)), len(data_sets(name, Reading(folder))[0].domain_names)
        assert (spec.classes, domains) == (CATALOGUE[name].spec.classes, CATALOGUE[name].domains), name
        assert spec == CATALOGUE[name].spec or name == "pacs"


@pytest.mark.skipif("HETFL_DATA_DIR" not in os.environ, reason="HETFL_DATA_DIR names no folder of data sets")
def test_mnist_is_read_whole_from_a_local_copy():
    folder = os.environ["HETFL_DATA_DIR"]
    data = load(dataset="mnist", data_dir=folder, test="global", num_partitions=100, partition="classes:2")
    arrays = data.train.arrays
    assert arrays.inputs.shape == (70_000, 1, 28, 28)
    assert len(data.test) == 10_000
    assert np.bincount(arrays.labels[:60_000]).tolist() == [
        *(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    ]
    assert arrays.centre.mean().item() == pytest.approx(0.1307, abs=1e-4)  # MNIST's well-known mean pixel
    assert {row["name"]: row["where"] for row in datasets(folder)}["mnist"] == "local"


def test_digits_and_the_test_split_of_bundled_data_are_those_of_scikit_learn():
    """The same rows in the same order, without its import; other numbers of classes and rows too."""
    images, labels = bundled._digits()
    theirs = load_digits()
    assert (images.dtype, labels.dtype) == (theirs.images.dtype, theirs.target.dtype)
    assert (images.tobytes(), labels.tobytes()) == (theirs.images.tobytes(), theirs.target.tobytes())
    rng = np.random.default_rng(0)
    made = [rng.choice(classes, size=rows) for classes, rows in ((2, 569), (3, 5000), (10, 1797), (7, 101))]
    for labels in (theirs.target, load_breast_cancer().target, *made):
        test = -(-len(labels) // 5)
        right = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels)
        assert np.array_equal(bundled._stratified(labels, test), np.concatenate(right))


def test_a_first_batch_takes_no_longer_with_many_clients():
    """The 8,000th client's as long as the first one's."""
    arrays = load().train.arrays
    samples = [Samples(arrays, torch.tensor([row % 1797, 0])) for row in range(8000)]

    def seconds(some):
        start = process_time()
        for one in some:
            one.batch(torch.tensor([0]))
        return process_time() - start

    first, _, last = (seconds(samples[start:end]) for start, end in ((0, 500), (500, 7500), (7500, 8000)))
    assert last < 8 * first
