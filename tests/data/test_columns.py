"""Columns that say which domain a row is of, and whose it is."""

import os

import datasets
import numpy as np
import pytest
import torch
from fixtures.data.hub import grey, table, write
from fixtures.data.loading import load_client

from hetfl_flwr.data import DataSpec, Reading
from hetfl_flwr.data.domains import data_sets
from hetfl_flwr.errors import ConfigError, DataError

STYLES = ["photo", "art", "photo", "sketch", "art", "photo"]


@pytest.fixture
def zoo(tmp_path):
    """Image i is grey 10 i, of class i % 3 and style ``STYLES[i]``; the test split has one of each style."""
    test = table([grey(200), grey(210), grey(220)], [0, 1, 2], style=["sketch", "photo", "art"])
    return write(tmp_path, train=table(style=STYLES), test=test)


def load(root, partition_id=0, num_partitions=3, **keys):
    own = {"dataset": "zoo/pets", "domain_column": "style", "seed": 0, "validation_fraction": 0.0} | keys
    return load_client(data_dir=str(root), partition_id=partition_id, num_partitions=num_partitions, **own)


def greys(samples):
    return samples.stored()[0][:, 0, 0, 0].tolist()


def test_each_value_is_a_domain_in_sorted_order(zoo):
    data = [load(zoo, k, test="global", normalize="none") for k in range(3)]
    assert [client.domain for client in data] == [0, 1, 2]
    assert [sorted(greys(client.train)) for client in data] == [[10, 40], [0, 20, 50], [30]]
    assert [greys(client.test) for client in data] == [[220], [210], [200]]
    assert [greys(other) for other in data[1].others] == [[220], [200]]
    assert data[0].train.labels.tolist() == [greys_of // 10 % 3 for greys_of in greys(data[0].train)]


def test_more_clients_than_domains_share_them_out_and_fewer_leave_some(zoo):
    shares = [load(zoo, k, 5, test_fraction=0.0) for k in range(5)]
    assert [client.domain for client in shares] == [0, 1, 2, 0, 1]
    assert sorted(greys(shares[1].train) + greys(shares[4].train)) == [0, 20, 50, 210]
    assert load(zoo, 0, 2).others[0].arrays is load(zoo, 1, 2).train.arrays


def test_all_domains_are_views_of_one_array(zoo):
    families = data_sets("zoo/pets", Reading(str(zoo), domain_column="style"))
    assert len(families[0].domain_names) == 3
    domains = families[0].arrays(0, True)
    assert len({arrays.inputs.untyped_storage().data_ptr() for arrays in domains}) == 1
    assert [(arrays.train_rows, len(arrays.labels)) for arrays in domains] == [(2, 3), (3, 4), (1, 2)]


def test_they_have_one_mean_image(zoo):
    """The means of the domains are 25, 70 / 3 and 30: their mean is 26 1/9."""
    centres = [load(zoo, k).train.arrays.centre for k in range(3)]
    assert torch.allclose(centres[0], torch.full((1, 4, 5), (25 + 70 / 3 + 30) / 3 / 255))
    assert torch.equal(centres[0], centres[1])


def test_domains_of_a_list_follow_those_before_them(zoo):
    seats = [load(zoo, k, 4, dataset="digits,zoo/pets", domain_column=",style") for k in range(4)]
    assert [client.spec.shape for client in seats] == [(1, 8, 8), *[(1, 4, 5)] * 3]
    assert [client.others for client in seats] == [()] * 4


def test_tables_and_texts_have_domains_as_well(tmp_path):
    rows = {
        "age": [3, 1, 2, 5],
        "note": ["b", "a a", "c", "d"],
        "ward": [9, 4, 9, 4],
        "sick": ["no", "no", "yes", "yes"],
    }
    write(tmp_path, train=datasets.Dataset.from_dict(rows))
    keys = {"domain_column": "ward", "label_column": "sick", "test_fraction": 0.0, "normalize": "none"}
    ages = [load(tmp_path, k, 2, ignore_columns="note", **keys) for k in range(2)]
    assert [sorted(client.train.stored()[0].flatten().tolist()) for client in ages] == [[1, 5], [2, 3]]
    assert ages[0].spec == DataSpec((1,), 2)
    texts = [load(tmp_path, k, 2, text_column="note", text_length=2, vocabulary="shared:9", **keys) for k in range(2)]
    assert [sorted(client.train.stored()[0].tolist()) for client in texts] == [[[2, 2], [5, 0]], [[3, 0], [4, 0]]]


def test_owners_are_numbered_by_sorted_values(zoo):
    for column, domain, owners in (("style", "", [1, 0, 1, 2, 0, 1, 2, 1, 0]), ("style", "style", [0] * 3)):
        reading = Reading(str(zoo), domain_column=domain, id_column=column)
        arrays = data_sets("zoo/pets", reading)[0].arrays(0, True)[0]
        assert arrays.owners.tolist() == owners
    assert data_sets("zoo/pets", Reading(str(zoo)))[0].arrays(0, True)[0].owners is None


def test_owners_of_a_rotated_family_go_with_the_images_drawn(zoo):
    family = data_sets("rotated-zoo/pets", Reading(str(zoo), id_column="style"))[0]
    arrays = family.arrays(0, False)[2]
    whole = data_sets("zoo/pets", Reading(str(zoo), id_column="style"))[0].arrays(0, False)[0]
    assert np.bincount(arrays.owners).tolist() == [2, 3, 1]
    assert len(whole.owners) == 9


AGES = {"age": [3, 1, 2], "sick": [0, 1, 0]}
WARDS = AGES | {"ward\tor floor": [1, 2, 3]}
TABLE = {"label_column": "sick", "domain_column": ""}


@pytest.mark.parametrize(
    ("rows", "test", "keys", "said"),
    [
        (STYLES, None, {"domain_column": "styles"}, "'style'"),
        (STYLES, None, {"partition": "natural:owner"}, "image, label, style"),
        (["a", "b", None] * 2, None, {}, "row 3 and 1 more"),
        (["a", "b"] * 3, ["aa"], {}, "style aa"),
        (STYLES, None, {"test": "global"}, "test-set"),
        (STYLES, None, {"dataset": "rotated-zoo/pets"}, "'zoo/pets'"),
        (STYLES, None, {"dataset": "rotated-pacs", "domain_column": ""}, "'pacs'"),
        (AGES, None, {"dataset": "rotated-zoo/pets", **TABLE}, "is a table"),
        (WARDS, {"age": [4], "sick": [1]}, TABLE, r"split 'test'"),
    ],
)
def test_what_has_no_such_domains_or_owners_is_refused(tmp_path, refusal, rows, test, keys, said):
    """Tables by their columns, images by their styles."""

    def split(rows):
        if isinstance(rows, dict):
            return datasets.Dataset.from_dict(rows)
        return table([grey(0)] * len(rows), [0, 1, 2, 0, 1, 2][: len(rows)], style=rows)

    splits = {name: split(one) for name, one in (("train", rows), ("test", test)) if one}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "zoo/pets")
    assert said in refusal((DataError, ConfigError), load, tmp_path, **keys)


@pytest.mark.skipif("HETFL_DATA_DIR" not in os.environ, reason="HETFL_DATA_DIR names no folder of data sets")
def test_pacs_is_four_domains_by_name():
    place = {"dataset": "pacs", "domain_column": "", "test_fraction": 0.15, "image_size": 32}
    data = [load(os.environ["HETFL_DATA_DIR"], k, 4, **place) for k in range(4)]
    assert [len(client.train.arrays.labels) for client in data] == [2048, 2344, 1670, 3929]
    assert [client.spec for client in data] == [DataSpec((3, 32, 32), 7)] * 4
    assert [len(client.others) for client in data] == [3] * 4
