"""Columns that say which domain a row is of, and whose it is."""

import os

import datasets
import numpy as np
import pytest
import torch
from fixtures.data.hub import grey, table, write
from fixtures.data.loading import load_client

from hetfl_flwr.common.errors import ConfigError, DataError
from hetfl_flwr.data import DataSpec, Reading
from hetfl_flwr.data.domains import family_arrays, parse_families

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
    families = parse_families("zoo/pets", Reading(str(zoo), domain_column="style"))
    assert families[0].domains == 3
    domains = family_arrays(families[0], 0, True)
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
        arrays = family_arrays(parse_families("zoo/pets", reading)[0], 0, True)[0]
        assert arrays.owners.tolist() == owners
    assert family_arrays(parse_families("zoo/pets", Reading(str(zoo)))[0], 0, True)[0].owners is None


def test_owners_of_a_rotated_family_go_with_the_images_drawn(zoo):
    family = parse_families("rotated-zoo/pets", Reading(str(zoo), id_column="style"))[0]
    arrays = family_arrays(family, 0, False)[2]
    whole = family_arrays(parse_families("zoo/pets", Reading(str(zoo), id_column="style"))[0], 0, False)[0]
    assert np.bincount(arrays.owners).tolist() == [2, 3, 1]
    assert len(whole.owners) == 9


class TestRefused:
    def test_a_column_that_is_not_there(self, zoo, refusal):
        place = f"'{zoo}/zoo/pets' has no column"
        said = refusal(DataError, load, zoo, domain_column="styles")
        assert said.startswith(
            f"{place} 'styles' in its split 'train': did you mean 'style'? Set domain-column to one of"
        )
        said = refusal(DataError, load, zoo, partition="natural:owner")
        assert said == (
            f"{place} 'owner' in its split 'train': set COLUMN in partition=natural:COLUMN to one of: "
            "image, label, style"
        )

    def test_a_column_of_a_table_that_the_test_split_lacks(self, tmp_path, refusal):
        rows = {"age": [3, 1, 2], "ward\tor floor": [1, 2, 3], "sick": [0, 1, 0]}
        datasets.DatasetDict(
            train=datasets.Dataset.from_dict(rows), test=datasets.Dataset.from_dict({"age": [4], "sick": [1]})
        ).save_to_disk(tmp_path / "zoo/pets")
        keys = {"label_column": "sick", "domain_column": "", "num_partitions": 1}
        said = refusal(DataError, load, tmp_path, **keys)
        assert said.endswith(r"has no column 'ward\tor floor' in its split 'test': name it in ignore-columns")
        assert load(tmp_path, ignore_columns="ward or floor", **keys).spec == DataSpec((1,), 2)

    def test_a_row_without_a_domain(self, tmp_path, refusal):
        root = write(tmp_path, train=table(style=["a", "b", None] * 2))
        said = refusal(DataError, load, root)
        assert (
            said
            == f"row 3 of split 'train' of '{root}/zoo/pets' and 1 more have no style: fill it in, or leave the row out"
        )

    def test_a_domain_that_nobody_can_train_on(self, tmp_path, refusal):
        root = write(tmp_path, train=table(style=["a", "b"] * 3), test=table([grey(0)], [0], style=["aa"]))
        said = refusal(DataError, load, root)
        assert said == (
            f"'{root}/zoo/pets' has no training row of style aa: put some into it, or leave that domain out"
        )

    def test_no_global_test_set_without_a_test_split(self, tmp_path, refusal):
        root = write(tmp_path, train=table(style=STYLES))
        said = refusal(ConfigError, load, root, test="global")
        assert said == "dataset 'zoo/pets' has no test split of its own: set test-set to client"

    @pytest.mark.parametrize(("name", "column"), [("rotated-zoo/pets", "style"), ("rotated-pacs", "")])
    def test_domains_are_not_turned_as_well(self, zoo, refusal, name, column):
        base = name.removeprefix("rotated-")
        assert refusal(ConfigError, load, zoo, dataset=name, domain_column=column) == (
            f"dataset '{name}': '{base}' has domains of its own, and is not rotated as well: use '{base}'"
        )

    def test_tables_of_the_hub_are_not_turned(self, tmp_path, refusal):
        rows = {"age": [3, 1, 2, 5], "label": [0, 1, 0, 1]}
        write(tmp_path, train=datasets.Dataset.from_dict(rows))
        keys = {"dataset": "rotated-zoo/pets", "domain_column": "", "label_column": "label"}
        assert refusal(ConfigError, load, tmp_path, **keys) == (
            "dataset 'rotated-zoo/pets': 'zoo/pets' is a table, and only images can be rotated: use 'zoo/pets'"
        )


@pytest.mark.skipif("HETFL_DATA_DIR" not in os.environ, reason="HETFL_DATA_DIR names no folder of data sets")
def test_pacs_is_four_domains_by_name():
    place = {"dataset": "pacs", "domain_column": "", "test_fraction": 0.15, "image_size": 32}
    data = [load(os.environ["HETFL_DATA_DIR"], k, 4, **place) for k in range(4)]
    assert [len(client.train.arrays.labels) for client in data] == [2048, 2344, 1670, 3929]
    assert [client.spec for client in data] == [DataSpec((3, 32, 32), 7)] * 4
    assert [len(client.others) for client in data] == [3] * 4
