"""Tables: their columns sliced and standardised."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec, Samples, load_client_data, parse_features
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.tables import feature_slice, standardised
from hetfl_flwr.errors import ConfigError, ModelError
from hetfl_flwr.models import build_model
from hetfl_flwr.seeding import generator

CANCER = {"dataset": "breast-cancer", "partition_id": 0, "num_partitions": 3, "seed": 0}


def load(**changes):
    return load_client_data(**(CANCER | changes))


def values(samples):
    return samples.batch(torch.arange(len(samples)))[0].double().numpy()


def slices(columns, clients, overlap, seed=0):
    return [set(feature_slice(columns, clients, position, overlap, seed)) for position in range(clients)]


def test_breast_cancer_is_the_table_of_scikit_learn_with_a_stratified_fifth_for_testing():
    bunch = load_breast_cancer()
    arrays = load(normalize="none").train.arrays
    assert arrays.inputs.dtype == torch.float32
    assert arrays.labels.dtype == torch.int64
    table = np.column_stack([arrays.inputs, arrays.labels])
    whole = np.column_stack([bunch.data.astype(np.float32), bunch.target])
    assert np.array_equal(table[np.lexsort(table.T)], whole[np.lexsort(whole.T)])
    test = load(test="global").test
    assert test.class_counts(2).tolist() == [42, 72]  # a fifth of 212 and of 357
    assert torch.equal(test.rows, torch.arange(455, 569))


def test_without_normalization_a_table_is_given_as_it_is_stored():
    train = load(normalize="none").train
    assert torch.equal(train.batch(torch.arange(len(train)))[0], train.stored()[0])
    assert train.stored()[0].max() > 1000


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


def test_clients_have_scales_of_their_own_and_one_table():
    first, second = load(), load(partition_id=1)
    assert not torch.equal(first.train.arrays.centre, second.train.arrays.centre)
    assert first.train.arrays.inputs.data_ptr() == second.train.arrays.inputs.data_ptr()
    assert load().test.arrays is first.train.arrays


def test_a_column_that_is_constant_over_the_training_rows_is_zero_everywhere():
    """Rows 0 and 1: 1 and 3 have mean 2 and deviation 1, so that 7 becomes 5; 0.1 is constant, its 9 does not count."""
    inputs = torch.tensor([[1, 0.1], [3, 0.1], [7, 9]])
    table = Arrays(DataSpec((2,), 2), inputs, torch.tensor([0, 1, 0]), 3, 1.0, torch.zeros(2))
    prepared = Samples(standardised(table, (0, 1)), torch.arange(3))
    assert prepared.batch(torch.arange(3))[0].tolist() == [[-1, 0], [1, 0], [5, 0]]
    alone = Samples(standardised(table, (2,)), torch.arange(3))
    assert alone.batch(torch.arange(3))[0].tolist() == [[0, 0]] * 3


def test_rows_of_others_are_prepared_with_the_own_scale():
    here, there = load(), load(partition_id=1)
    theirs = here.train.like(*there.public.stored())
    arrays = here.train.arrays
    expected = there.public.stored()[0] / arrays.peak - arrays.centre
    assert torch.equal(theirs.batch(torch.arange(len(theirs)))[0], expected)
    assert not torch.equal(expected, there.public.batch(torch.arange(len(there.public)))[0])


def test_the_scale_moves_with_the_table():
    moved = load().to(torch.device("meta")).train
    assert moved.batch(torch.zeros(4, dtype=torch.int64, device="meta"))[0].shape == (4, 30)


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

    def test_two_share_at_both_ends_and_one_has_all(self):
        """Parts of 5 of which 2 go to the other: slices of 7, in common 2 + 2."""
        first, second = slices(10, 2, 0.4)
        assert (len(first), len(second), len(first & second)) == (7, 7, 4)
        assert slices(10, 1, 0.5) == [set(range(10))]

    def test_what_is_shared_is_rounded_to_the_nearest_and_is_the_end_of_the_part_before(self):
        """0.6 of 3 columns is 1.8, so 2; the last part comes before the first."""
        order = generator(4, "features").permutation(9).tolist()
        assert slices(9, 3, 0.6, seed=4) == [{*order[:3], *order[7:]}, {*order[1:6]}, {*order[4:]}]

    def test_the_seed_draws_the_order_of_the_columns(self):
        assert slices(30, 3, 0.0) == slices(30, 3, 0.0)
        assert slices(30, 3, 0.0) != slices(30, 3, 0.0, seed=1)
        assert slices(30, 3, 0.0) != [set(range(0, 10)), set(range(10, 20)), set(range(20, 30))]

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

    def test_a_slice_is_copied_once(self):
        first, again = (load(features="slices:0.5", test=test) for test in ("client", "global"))
        assert first.train.arrays.inputs.data_ptr() == again.train.arrays.inputs.data_ptr()

    def test_in_a_list_a_table_is_cut_for_its_own_clients(self):
        digits = {"num_partitions": 4, "dataset": "breast-cancer,digits", "features": "slices:0"}
        assert [load(**digits, partition_id=k).spec.shape for k in (0, 2)] == [(15,), (15,)]

    def test_a_multilayer_perceptron_takes_them_and_a_convolution_does_not(self, refusal):
        data = load(features="slices:0.5")
        assert build_model("mlp", data.spec, seed=0)(data.train.batch(torch.arange(5))[0]).shape == (5, 2)
        assert "lenet5" in refusal(ModelError, build_model, "lenet5", data.spec, seed=0)

    @pytest.mark.parametrize(
        "text", ["", "slices", "slices:", "slices:1", "slices:-0.1", "slices:nan", "slices:x", "all:0", "rows:0.5"]
    )
    def test_any_other_text_is_refused_with_the_valid_forms(self, refusal, text):
        line = f"features {text!r} is not one of: all, slices:OVERLAP (0 <= OVERLAP < 1)"
        assert refusal(ConfigError, parse_features, text) == line
        assert refusal(ConfigError, RunConfig.from_flat, {"features": text}) == line

    def test_more_clients_than_columns_are_refused(self, refusal):
        said = refusal(ConfigError, load, num_partitions=31, features="slices:0.5")
        assert said == "31 clients cannot share 30 columns: use 30 clients or fewer, or features all"
        assert load(num_partitions=30, features="slices:0").spec.shape == (1,)

    def test_images_are_not_sliced(self, refusal):
        said = refusal(ConfigError, load, dataset="digits", features="slices:0.5")
        assert said == "features 'slices:0.5': 'digits' holds images, and only tables are sliced: set it to all"
