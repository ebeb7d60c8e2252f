"""Data sets in the hub's layout, written small into a temporary folder; the network is never touched."""

from functools import partial

import datasets
import numpy as np
import pytest
import torch
from datasets import List, Value
from fixtures.data.hub import colour, grey, table, write
from fixtures.data.loading import load_client
from PIL import Image

from hetfl_flwr.data import CATALOGUE, DataSpec, Reading, data_spec
from hetfl_flwr.data.client_data import ClientData
from hetfl_flwr.errors import ConfigError, DataError
from simulations.cli import facts

INTEGERS = Value("int64")
BUNDLED = {"breast-cancer", "digits", "digits-colour", "rotated-digits", "waveform"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def hub(tmp_path):
    """Write splits below ``<root>/zoo/pets``, or another folder, and return the root."""
    return partial(write, tmp_path / "hub")


def load(data_dir, **changes) -> ClientData:
    return load_client(data_dir=str(data_dir), **{"dataset": "zoo/pets", "normalize": "none"} | changes)


ALL = {"validation_fraction": 0.0, "test_fraction": 0.0}


def refused(data_dir, **changes):
    with pytest.raises(DataError) as caught:
        load(data_dir, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def places(data_dir):
    rows = facts.datasets(str(data_dir))
    return {where: {row["name"] for row in rows if row["where"] == where} for where in {row["where"] for row in rows}}


def pixels_by_label(samples):
    inputs, labels = samples.batch(torch.arange(len(samples)))
    return sorted(
        (label, round(255 * image.mean().item())) for image, label in zip(inputs, labels.tolist(), strict=True)
    )


def test_train_and_test_splits_are_read_and_pooled_or_kept_apart(hub, refusal):
    """Grey values 0, 10, ..., 50 of the training split have the mean 25; the test split's do not count."""
    root = hub(train=table(), test=table([grey(200), grey(210)], [2, 1]))
    apart = load(root, test="global", validation_fraction=0.0)
    assert pixels_by_label(apart.train) == [(0, 0), (0, 30), (1, 10), (1, 40), (2, 20), (2, 50)]
    assert pixels_by_label(apart.test) == [(1, 210), (2, 200)]
    inputs, _ = load(root, test="global", normalize="mean-image").test.batch(torch.tensor([0]))
    assert torch.allclose(inputs, torch.full((1, 1, 4, 5), (200 - 25) / 255))
    pooled = load(root)
    assert len(pooled.train) + len(pooled.validation) + len(pooled.test) == 8
    assert apart.spec == data_spec("zoo/pets", Reading(str(root))) == DataSpec((1, 4, 5), 3)
    alone = hub(folder="alone/pets", train=table())
    assert "test-set" in refusal(ConfigError, load, alone, dataset="alone/pets", test="global")


def test_colour_is_channels_first_grey_is_repeated_and_rows_are_rows(hub):
    picture = np.arange(20, dtype=np.uint8).reshape(4, 5)
    root = hub(train=table([colour(10, 20, 30), Image.fromarray(picture)], [0, 1]))
    data = load(root, **ALL)
    inputs, labels = data.train.batch(torch.argsort(data.train.labels))
    assert (data.spec.shape, labels.tolist()) == ((3, 4, 5), [0, 1])
    assert (255 * inputs[0]).round().flatten(1).unique(dim=1).tolist() == [[10], [20], [30]]
    assert torch.equal((255 * inputs[1]).round(), torch.from_numpy(picture).float().expand(3, -1, -1))


@pytest.mark.parametrize(
    ("folder", "data_dir"),
    [("zoo/pets", "zoo/pets"), ("pets/default/v1", "pets"), ("mine/data", "mine")],
)
def test_data_dir_may_be_the_folder_itself_and_another_data_set_of_it_is_never_taken(hub, folder, data_dir):
    """Files lie in it or in its ``data``; below that only where the folder bears the data set's name."""
    assert load(hub(folder=folder, train=table()) / data_dir).spec == DataSpec((1, 4, 5), 3)
    root = hub(folder="birds/zoo/birds", train=table()) / "birds"
    assert "holds no zoo/pets" in refused(root)
    assert "holds no zoo/pets" in refused(root / "zoo")


def test_a_relative_data_dir_is_read_anew_from_another_working_folder(hub, monkeypatch):
    hub(folder="a/zoo/pets", train=table())
    root = hub(folder="b/zoo/pets", train=table(images=[grey(0, (7, 7))], labels=[0]))
    sizes = []
    for place in ("a", "b"):
        monkeypatch.chdir(root / place)
        sizes.append(load(".").spec.shape)
    assert sizes == [(1, 4, 5), (1, 7, 7)]


def test_what_save_to_disk_wrote_is_read(tmp_path):
    datasets.DatasetDict(train=table(), test=table([grey(9)], [1])).save_to_disk(tmp_path / "zoo" / "pets")
    assert pixels_by_label(load(tmp_path, test="global").test) == [(1, 9)]
    table().with_format("arrow").save_to_disk(tmp_path / "single")
    assert len(load(tmp_path / "single", **ALL).train) == 6


def test_columns_are_guessed_by_type_or_named(hub, tmp_path):
    root = hub(train=table(names=("photo", "animal")))
    assert load(root).spec.classes == 3
    assert load(root, image_column="photo", label_column="animal").spec.classes == 3
    assert "photo, animal" in refused(root, label_column="breed")
    assert "mean 'animal'" in refused(root, label_column="animals")
    assert "image-column" in refused(root, image_column="animal")
    root = write(tmp_path / "numbers", train=table(feature=INTEGERS))
    assert "label-column" in refused(root)
    assert load(root, label_column="label").spec.classes == 3


def test_whole_numbers_in_one_split_and_texts_in_the_other_are_one_label(hub):
    root = hub(train=numbered(5, 7, 5)(), test=table(labels=["7", "5", "5"], feature=Value("string")))
    assert load(root, label_column="label", **ALL).train.arrays.labels.tolist() == [0, 1, 0, 1, 0, 0]


BROKEN = {"bytes": b"no image", "path": None}


def three(*images):
    return partial(table, list(images), [0, 1, 2])


def numbered(*labels):
    return partial(table, labels=list(labels), feature=INTEGERS)


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        (partial(table, labels=[0, -1]), None, "column 'label' of {place} holds -1 in row 2"),
        (partial(table, labels=[0.0, 1.5], feature=Value("float64")), None, "regression"),
        (partial(table, labels=[[0, 1], [1, 0]], feature=List(INTEGERS)), None, "several labels in each row"),
        (numbered(None, None), None, "no row of {place}"),
        (three(grey(0), colour(1, 2, 3), grey(0)), None, "column 'image' of {place}, row 2: its image is in"),
        (
            partial(table, [grey(0), BROKEN], [0, 1]),
            None,
            "{place}, row 2: its image cannot be decoded",
        ),
        (table, partial(table, names=("image", "kind")), "split 'test' of {place} has no column 'label'"),
        (None, table, "{place} has no split 'train', only: test"),
    ],
)
def test_what_is_no_data_set_of_classes_is_refused(tmp_path, train, test, said):
    splits = {name: make() for name, make in (("train", train), ("test", test)) if make}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "zoo/pets")
    place = f"'{tmp_path}/zoo/pets'"
    assert said.format(place=place) in refused(tmp_path, label_column="label")


def test_of_a_catalogue_name_the_files_say_the_shape_and_the_catalogue_the_classes(hub):
    root = hub(folder=CATALOGUE["mnist"].place, train=table())
    assert load(root, dataset="mnist").spec == data_spec("mnist", Reading(str(root))) == DataSpec((1, 4, 5), 10)
    assert data_spec("mnist") == DataSpec((1, 28, 28), 10)
    found = places(root)
    assert (found["bundled"], found["local"]) == (BUNDLED, {"mnist", "rotated-mnist"})


def test_the_classes_of_a_catalogue_name_are_the_same_whichever_of_them_a_client_has(hub):
    ages = datasets.Dataset.from_dict({"age": [30, 40, 50], "income": [" >50K", ">50K", ">50K"]})
    root = hub(folder="uci/adult", train=ages)
    data = load(root, dataset="adult", **ALL)
    assert (data.train.labels.tolist(), data.spec) == ([1, 1, 1], DataSpec((1,), 2))
    assert data.train.arrays.notes == (f"'{root}/uci/adult' has 3 samples, and the published data set 48,842",)
    wrong = hub(folder="uci/ilpd", train=datasets.Dataset.from_dict({"age": [3, 4], "label": [1, 3]}))
    assert "row 2" in refused(wrong, dataset="ilpd")
    rows = {"age": [3, 4], "1_survives_0_dies": ["no", "yes"]}
    typed = hub(folder="uci/hcc-survival", train=datasets.Dataset.from_dict(rows))
    assert "0, 1" in refused(typed, dataset="hcc")


def test_a_folder_without_data_files_says_what_was_expected_where(hub, tmp_path):
    root = hub()
    (root / "zoo/pets/notes.txt").write_text("nothing here")
    assert f"expected in '{root}/zoo/pets'" in refused(root)
    found = places(root)
    assert (set(found), found["bundled"]) == ({"bundled", "hub", "folder only"}, BUNDLED)
    assert found["folder only"] == {"adult", "breast-cancer-wisconsin", "har", "hcc", "ilpd", "synthetic-digits"}
    assert f"'{tmp_path}/none'" in refused(tmp_path / "none")
    root = write(tmp_path / "empty", train=datasets.Dataset.from_dict({"age": [], "label": []}))
    assert "train-0.parquet' holds no rows" in refused(root, label_column="label")


def test_images_of_the_hub_are_turned_as_well(hub):
    """A bright first row, 4 pixels high and 5 wide, is darkened at both ends by the turn and leaves its place."""
    picture = np.zeros((4, 5, 3), dtype=np.uint8)
    picture[0] = (200, 100, 0)
    root = hub(train=table([Image.fromarray(picture)] * 6), test=table([Image.fromarray(picture)] * 2, [0, 1]))
    straight, turned = (load(root, dataset="rotated-zoo/pets", num_partitions=4, partition_id=k) for k in (0, 3))
    assert straight.spec == data_spec("rotated-zoo/pets", Reading(str(root))) == DataSpec((3, 4, 5), 3)
    assert len(straight.train) + len(straight.validation) + len(straight.test) == 6
    assert torch.equal(straight.train.stored()[0][0], torch.from_numpy(picture).permute(2, 0, 1))
    assert turned.train.stored()[0][0, 0, :, 4].sum() > 200 > turned.train.stored()[0][0, 0, :, 0].sum()


def test_a_list_finds_each_data_set_with_columns_of_its_own(hub):
    hub(train=table(names=("photo", "kind"), feature=INTEGERS))
    root = hub(folder="zoo/birds", train=table(images=[colour(1, 2, 3)] * 3, labels=[0, 1, 1], feature=INTEGERS))
    for partition_id, spec in enumerate([DataSpec((1, 4, 5), 3), DataSpec((3, 4, 5), 2)]):
        place = {"num_partitions": 2, "partition_id": partition_id, "label_column": "kind, label"}
        assert load(root, dataset="zoo/pets,zoo/birds", **place).spec == spec


def test_a_hub_out_of_reach_is_one_line_with_both_ways_out():
    assert "<data-dir>/zoo/pets" in refused("")
