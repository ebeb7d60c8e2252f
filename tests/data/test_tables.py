"""Tables: their columns read, sliced and standardised."""

import json

import numpy as np
import pytest
import torch
from fixtures.data.columns import lay, read, standardised, write_csv
from fixtures.data.loading import load_client
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec, parse_features
from hetfl_flwr.data.tables import feature_slice, sliced
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator

CANCER = {"dataset": "breast-cancer", "partition_id": 0, "num_partitions": 3, "seed": 0}


def load(**changes):
    return load_client(**(CANCER | changes))


def values(samples):
    return samples.batch(torch.arange(len(samples)))[0].double().numpy()


def slices(columns, clients, overlap, seed=0):
    return [set(feature_slice(columns, clients, position, overlap, seed)) for position in range(clients)]


def test_breast_cancer_is_the_table_of_scikit_learn_with_a_stratified_fifth_for_testing():
    bunch = load_breast_cancer()
    arrays = load(normalize="none").train.arrays
    assert arrays.inputs.dtype == torch.float64
    assert arrays.labels.dtype == torch.int64
    table = np.column_stack([arrays.inputs, arrays.labels])
    whole = np.column_stack([bunch.data, bunch.target])
    assert np.array_equal(table[np.lexsort(table.T)], whole[np.lexsort(whole.T)])
    test = load(test="global").test
    assert test.class_counts(2).tolist() == [42, 72]  # a fifth of 212 and of 357
    assert torch.equal(test.rows, torch.arange(455, 569))


def test_columns_are_standardised_on_the_own_training_rows_alone():
    data = load(partition="dirichlet:0.5")
    own = values(data.train)
    assert np.allclose(own.mean(axis=0), 0, atol=1e-4)
    assert np.allclose(own.std(axis=0), 1, atol=1e-4)
    raw = load(partition="dirichlet:0.5", normalize="none")
    mean, deviation = values(raw.train).mean(axis=0), values(raw.train).std(axis=0)
    for prepared, stored in ((data.validation, raw.validation), (data.test, raw.test)):
        assert np.allclose(values(prepared), (values(stored) - mean) / deviation, atol=1e-4)
    assert not np.allclose(values(data.test).mean(axis=0), 0, atol=0.05)


class TestSlices:
    @given(
        columns=st.integers(1, 40),
        clients=st.integers(1, 40),
        overlap=st.floats(0, 0.99),
        seed=st.integers(0, 9),
    )
    def test_they_cover_all_columns_and_no_client_is_without(self, columns, clients, overlap, seed):
        clients = min(clients, columns)
        parts = slices(columns, clients, overlap, seed)
        assert set().union(*parts) == set(range(columns))
        assert min(map(len, parts)) >= 1

    @given(clients=st.integers(3, 8), width=st.integers(1, 6), shared=st.integers(0, 5))
    def test_each_shares_the_asked_for_number_with_either_neighbour_and_nothing_with_others(
        self, clients, width, shared
    ):
        """Parts of equal width w, of which s go to the next client: slices of w + s, s shared with either side."""
        shared = min(shared, width - 1)
        parts = slices(clients * width, clients, shared / width)
        for position, part in enumerate(parts):
            assert len(part) == width + shared
            assert len(part & parts[position - 1]) == shared
            assert clients == 3 or part.isdisjoint(parts[position - 2])

    def test_what_is_shared_is_rounded_to_the_nearest_and_is_the_end_of_the_part_before(self):
        """0.6 of 3 columns is 1.8, so 2; the last part comes before the first.

        Two share at both ends: parts of 5 of which 2 go to the other are slices of 7, in common 2 + 2. One has all.
        """
        order = generator(4, "features").permutation(9).tolist()
        assert slices(9, 3, 0.6, seed=4) == [{*order[:3], *order[7:]}, {*order[1:6]}, {*order[4:]}]
        first, second = slices(10, 2, 0.4)
        assert (len(first), len(second), len(first & second)) == (7, 7, 4)
        assert slices(10, 1, 0.5) == [set(range(10))]

    def test_a_client_has_its_columns_of_its_own_rows(self):
        whole = [load(partition_id=k, seed=1, normalize="none") for k in range(3)]
        for position, one in enumerate(whole):
            columns = list(feature_slice(30, 3, position, 0.5, seed=1))
            data = load(partition_id=position, seed=1, features="slices:0.5", normalize="none")
            assert data.spec == DataSpec((15,), 2)
            assert torch.equal(data.train.stored()[0], one.train.stored()[0][:, columns])
            assert torch.equal(data.train.rows, one.train.rows)
            scaled = load(partition_id=position, seed=1, features="slices:0.5")
            plain = load(partition_id=position, seed=1)
            assert np.array_equal(values(scaled.test), values(plain.test)[:, columns])

    @pytest.mark.parametrize(
        "text", ["", "slices", "slices:", "slices:1", "slices:-0.1", "slices:nan", "slices:x", "all:0", "rows:0.5"]
    )
    def test_any_other_text_is_refused_with_the_valid_forms(self, refusal, text):
        for function, value in ((parse_features, text), (RunConfig.from_flat, {"features": text})):
            assert repr(text) in refusal(ConfigError, function, value)

    def test_more_clients_than_columns_and_images_are_refused(self, refusal):
        assert "30 columns" in refusal(ConfigError, load, num_partitions=31, features="slices:0.5")
        assert "'digits'" in refusal(ConfigError, load, dataset="digits", features="slices:0.5")
        assert load(num_partitions=30, features="slices:0").spec.shape == (1,)


PEOPLE = """age,city,member,sex,label
1,b,True,f,no
2.5,a,False,m,yes
,,True,m,yes
4,b,True,f,no
"""
LATER = """age,city,member,sex,label
7,c,False,m,no
,a,True,x,yes
"""
"""Cities a and b and a missing one; city c is 0 throughout and sex x between f and m: the test split alone has them."""


class TestReading:
    """A row is age, city a, city b, city missing, member (False, then True), sex (f, then m)."""

    ROWS = ((1, 0, 1, 0, 1, 0), (2.5, 1, 0, 0, 0, 1), (np.nan, 0, 0, 1, 1, 1), (4, 0, 1, 0, 1, 0))

    @pytest.fixture
    def client(self, tmp_path):
        people = write_csv(tmp_path / "people", train=PEOPLE, test=LATER)
        own = {
            "dataset": people,
            "label_column": "label",
            "validation_fraction": 0,
            "partition": "all",
            "test": "global",
        }
        return lambda **keys: load_client(**own | keys)

    def test_a_client_sees_scaled_numbers_categories_as_they_are_and_zero_where_a_number_is_missing(self, client):
        """Ages 1, 2.5 and 4: mean 2.5, variance 1.5. The age 7 of the test split is 4.5 / sqrt(1.5)."""
        data = client()
        unit = 1.5**0.5
        expected = torch.tensor([(age, *rest) for age, (_, *rest) in zip((-unit, 0, 0, unit), self.ROWS, strict=True)])
        assert torch.allclose(data.train.batch(torch.argsort(data.train.rows))[0], expected.float())
        assert data.test.batch(torch.arange(2))[0][:, 0].tolist() == pytest.approx([3 * unit, 0])

    def test_another_device_does_not_change_the_digest(self, client):
        data = client()
        placed = data.to(torch.device("meta"))  # as on a GPU, tables are float32 there
        assert placed.train.arrays.inputs.dtype == torch.float32
        assert placed.digest == data.digest

    def test_slices_do_not_tear_a_category(self, client, refusal):
        whole = client(normalize="none").train.arrays
        starts = np.cumsum((0, *whole.groups))
        for position in range(3):
            columns = feature_slice(4, 3, position, 0.5, seed=0)
            keys = {"partition": "iid", "partition_id": position, "num_partitions": 3, "seed": 0}
            own = client(features="slices:0.5", normalize="none", **keys).train.arrays
            inputs = [number for column in columns for number in range(starts[column], starts[column + 1])]
            assert np.array_equal(own.inputs, whole.inputs[:, inputs], equal_nan=True)
            assert own.groups == tuple(whole.groups[column] for column in columns)
            assert own.numeric.tolist() == whole.numeric[inputs].tolist()
            assert own.spec == DataSpec((len(inputs),), 2)
        assert "4 columns" in refusal(ConfigError, client, features="slices:0", num_partitions=5)

    def test_test_rows_of_other_domains_are_scaled_as_the_own_rows_are(self, client, tmp_path):
        columns = {"age": [1, 5, 2, 6, 30, 40, 50, 60], "sex": ["f"] * 4 + ["m"] * 4, "label": [0, 1] * 4}
        keys = {"dataset": lay(tmp_path / "sexes", {"train.parquet": columns}), "domain_column": "sex"}
        keys |= {"num_partitions": 2, "test": "client", "test_fraction": 0.5}
        for position in range(2):
            data, raw = (client(**keys, partition_id=position, normalize=how) for how in ("mean-image", "none"))
            own, [other] = values(raw.train), raw.others
            assert np.allclose(values(data.others[0]), (values(other) - own.mean()) / own.std(), rtol=1e-5)
            assert (values(other).min() >= 30) == (own.max() <= 6)
            assert client(**keys, partition_id=position).others[0].arrays is data.others[0].arrays


def test_all_columns_are_no_copy_and_500_clients_share_them():
    table = read({"a": [1.0, 2.0, 3.0] * 500, "b": ["x", "y", "z"] * 500, "y": [0, 1, 1] * 500})
    assert sliced(table, (0, 1)) is table
    clients = [standardised(table, (3 * k, 3 * k + 1)) for k in range(500)]
    assert {client.inputs.data_ptr() for client in clients} == {table.inputs.data_ptr()}


def test_rows_with_missing_numbers_and_categories_cross_the_wire(tmp_path, make_config, run_federation):
    sizes = generator(0, "test").normal(size=60).tolist()
    columns = {
        "size": [None if row % 5 == 0 else size for row, size in enumerate(sizes)],
        "kind": ["a", "b", "c"] * 20,
        "label": [int(size > 0) for size in sizes],
    }
    dataset = str(lay(tmp_path / "data", {"train.parquet": columns}))
    own = {"dataset": dataset, "label_column": "label", "public_fraction": 0.3}
    folder = run_federation(make_config(algorithm="agg", models="mlp,tabular", **own))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["failures"] == 0
    assert summary["bytes_up"] == 2 * 9 * (4 * 4 + 8)  # nine public samples each: size, three kinds, and the label
