"""Domains: rotated families, lists of data sets, columns that tell them, public samples, and several samples as one."""

import gc
import hashlib
import os
import weakref
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from fixtures.data.columns import lay
from fixtures.data.hub import grey, table, write
from fixtures.data.loading import load_client
from hypothesis import given, settings
from hypothesis import strategies as st

from hetfl_flwr.data import DataSpec, Reading, Samples, data_spec, kind_of, reread
from hetfl_flwr.data.domains import DataSet, data_sets
from hetfl_flwr.data.rotation import ANGLES, rotate, rotated
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.errors import ConfigError, DataError
from simulations.cli import facts

DIGITS = DataSet("digits", "digits", Reading())
ROTATED = {"dataset": "rotated-digits", "partition_id": 0, "num_partitions": 4, "seed": 0}


def load(**changes):
    return load_client(**(ROTATED | changes))


def clients(count, **changes):
    return [load(partition_id=k, num_partitions=count, **changes) for k in range(count)]


def rows(*parts):
    return {row for part in parts for row in part.rows.tolist()}


def stored(samples):
    """Every stored image with its label: what two samples of one domain are compared by."""
    inputs, labels = samples.stored()
    return sorted((image.numpy().tobytes(), label) for image, label in zip(inputs, labels.tolist(), strict=True))


def toy(count=8, *, peak=255.0, shape=(1, 2, 2), train_rows=None):
    """Image i is grey i throughout, of class i % 2."""
    values = torch.arange(count, dtype=torch.uint8)
    inputs = values.reshape(count, *(1 for _ in shape)).repeat(1, *shape)
    return Arrays(DataSpec(shape, 2), inputs, values.long() % 2, train_rows or count, peak, torch.zeros(shape))


class TestRotation:
    def test_a_quarter_turn_is_clockwise(self):
        """Of the rows 1 2 3 / 4 5 6 / 7 8 9 the first column, read upwards, becomes the first row: 7 4 1."""
        image = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
        assert rotate(image, 90).tolist() == [[[[7, 4, 1], [8, 5, 2], [9, 6, 3]]]]
        assert rotate(image, 90).dtype == torch.uint8

    def test_the_first_domain_is_not_turned_and_the_others_are_turned_by_their_angles(self):
        base = toy(40)
        family = rotated(base, seed=0, with_test=True)
        assert ANGLES == (0, 20, 40, 60)
        for degrees, arrays in zip(ANGLES, family, strict=True):
            assert torch.equal(arrays.inputs, rotate(family[0].inputs, degrees))
            assert torch.equal(arrays.labels, family[0].labels)
        assert stored(Samples(family[0], torch.arange(40))) == stored(Samples(base, torch.arange(40)))

    def test_100_images_a_class_are_drawn_of_the_training_split_by_the_seed(self):
        """Of 230 rows the first 210 are for training: 105 of each class; a class that has fewer gives all."""
        base = toy(230, train_rows=210)
        family, again, other = (rotated(base, seed, with_test=False)[0] for seed in (1, 1, 2))
        drawn = [set(one.inputs[:, 0, 0, 0].tolist()) for one in (family, other)]
        assert torch.bincount(family.labels).tolist() == [100, 100]
        assert (len(drawn[0]), max(drawn[0]) < 210, drawn[0] == drawn[1]) == (200, True, False)
        assert torch.equal(family.inputs, again.inputs)
        assert torch.bincount(rotated(toy(7), 0, with_test=False)[3].labels).tolist() == [4, 3]
        whole = rotated(base, 0, with_test=True)[0]
        assert (whole.train_rows, whole.inputs[200:, 0, 0, 0].tolist()) == (200, [*range(210, 230)])


class TestRotatedFamily:
    def test_client_k_is_of_domain_k_modulo_four_and_its_images_are_turned_so(self):
        data = clients(6, normalize="none")
        assert [client.domain for client in data] == [0, 1, 2, 3, 0, 1]
        straight = data[0].train.arrays.inputs
        for client in data:
            assert torch.equal(client.train.arrays.inputs[:1000], rotate(straight[:1000], 20 * client.domain))
        base = DIGITS.arrays(0, True)[0]
        assert {*stored(data[0].train)} <= {*stored(Samples(base, torch.arange(base.train_rows)))}

    def test_rotation_says_which_way_the_images_of_all_samples_are_rotated(self):
        """Training, test and the other domains' images; `torchvision` rotates counter-clockwise by an angle above 0."""
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.functional import rotate as counter_clockwise

        straight, *_ = clients(4, normalize="none")
        for rotation, sign in (("clockwise", -1), ("counter-clockwise", 1)):
            one = clients(4, normalize="none", rotation=rotation)[1]
            for held, degrees in ((one.train, 20), (one.test, 20), (one.others[1], 40), (one.others[2], 60)):
                images = straight.train.arrays.inputs[held.rows]
                expected = counter_clockwise(images, sign * degrees, interpolation=InterpolationMode.BILINEAR)
                assert torch.equal(held.stored()[0], expected)

    def test_the_clients_of_a_domain_share_its_1000_rows_out_among_themselves(self):
        data = clients(6, partition="dirichlet:0.5")
        parts = [rows(client.train, client.validation, client.test) for client in data]
        assert all(part for part in parts)
        assert parts[0].isdisjoint(parts[4])
        assert parts[0] | parts[4] == parts[1] | parts[5] == parts[2] == parts[3] == set(range(1000))

    def test_a_domain_draws_its_own_split_so_that_a_test_image_here_is_a_training_image_there(self):
        """Unless it is shared; also where all have all rows."""
        first, *others = clients(4)
        for other in others:
            assert rows(first.test) & rows(other.train)
            assert rows(first.test) != rows(other.test)
        first, second = clients(2, partition="all")
        assert rows(first.test) != rows(second.test)
        first, second = clients(2, partition="all", shared_split=True)
        assert rows(first.test) == rows(second.test) != rows(load(partition="all", shared_split=True, seed=1).test)

    @pytest.mark.parametrize("count", [3, 4, 8])
    def test_a_shared_split_closes_that_leak(self, count):
        data = clients(count, shared_split=True, partition="dirichlet:1")
        trained = rows(*(client.train for client in data))
        tested = rows(*(client.test for client in data))
        assert trained.isdisjoint(tested)
        assert trained.isdisjoint(rows(*(client.validation for client in data)))
        assert torch.equal(data[0].test.rows, data[min(4, count) - 1].test.rows)

    @pytest.mark.parametrize("count", [2, 4, 6, 8])
    @pytest.mark.parametrize(("others", "part"), [("others", "test"), ("others_validation", "validation")])
    def test_others_are_the_samples_of_all_clients_of_each_other_domain(self, count, others, part):
        data = clients(count)
        for client in data:
            there = sorted({one.domain for one in data} - {client.domain})
            for domain, other in zip(there, getattr(client, others), strict=True):
                theirs = [getattr(one, part) for one in data if one.domain == domain]
                inputs, labels = (torch.cat(parts) for parts in zip(*map(Samples.stored, theirs), strict=True))
                assert stored(other) == stored(theirs[0].like(inputs, labels))

    @pytest.mark.parametrize("count", [2, 5])
    def test_the_mean_training_image_is_of_all_domains_that_have_clients(self, count):
        """The mean of the domains' means, each over the training rows of all its clients."""
        data = clients(count, normalize="mean-training-image")
        means = []
        for domain in range(min(count, 4)):
            of_domain = [client for client in data if client.domain == domain]
            trained = sorted(rows(*(client.train for client in of_domain)))
            means.append(of_domain[0].train.arrays.inputs[trained].double().mean(dim=0) / 16)
        expected = torch.stack(means).mean(dim=0).float()
        for client in data:
            for samples in (client.train, client.test, *client.others):
                assert torch.allclose(samples.arrays.centre, expected, atol=1e-6)

    def test_a_global_test_set_is_the_own_test_split_turned_as_the_domain(self):
        data = clients(5, test="global")
        split = DIGITS.arrays(0, True)[0].inputs[1437:]
        for client in data:
            assert torch.equal(client.test.stored()[0], rotate(split, 20 * client.domain))
            assert rows(client.train, client.validation) <= set(range(1000))
            assert [len(other) for other in client.others] == [360] * 3
        assert torch.equal(data[0].others[2].stored()[0], rotate(split, 60))

    def test_the_arrays_of_a_domain_are_there_once(self):
        first, second = load(), load(partition_id=4, num_partitions=8, normalize="none")
        assert first.train.arrays.inputs.data_ptr() == second.train.arrays.inputs.data_ptr()
        assert first.train.arrays is load(num_partitions=8, partition="shards:2").test.arrays

    @pytest.mark.skipif("HETFL_DATA_DIR" not in os.environ, reason="HETFL_DATA_DIR names no folder of data sets")
    def test_rotated_mnist_is_100_real_images_a_class_in_four_domains(self):
        mnist = {"dataset": "rotated-mnist", "data_dir": os.environ["HETFL_DATA_DIR"], "normalize": "none"}
        arrays = [client.train.arrays for client in clients(4, **mnist)]
        assert [tuple(one.inputs.shape) for one in arrays] == [(1000, 1, 28, 28)] * 4
        assert torch.bincount(arrays[2].labels).tolist() == [100] * 10
        assert torch.equal(arrays[3].inputs, rotate(arrays[0].inputs, 60))
        whole = load(**mnist | {"dataset": "mnist"}).train.arrays
        assert {*stored(Samples(arrays[0], torch.arange(1000)))} <= {*stored(Samples(whole, torch.arange(70_000)))}
        assert [len(other) for other in load(**mnist, test="global").others] == [10_000] * 3


class TestLists:
    def test_clients_are_dealt_the_data_sets_in_turn_and_each_has_its_own_spec(self):
        """A list may mix tables, images and families."""
        data = clients(6, dataset="breast-cancer,rotated-digits, digits-colour")
        assert [client.domain for client in data] == [0, 1, 2, 3, 4, 5]
        assert [client.spec.shape for client in data] == [(30,), *[(1, 8, 8)] * 4, (3, 16, 16)]
        assert [client.spec.classes for client in data] == [2] + [10] * 5
        assert all(client.others == () for client in data)
        assert [len(rows(one.train, one.validation, one.test)) for one in data] == [569, *[1000] * 4, 1797]
        assert torch.equal(data[3].train.arrays.inputs, rotate(data[1].train.arrays.inputs, 40))
        assert torch.equal(data[3].train.arrays.centre, data[1].train.arrays.centre)

    def test_the_first_of_a_list_is_shared_out_as_it_is_alone(self):
        alone, listed = clients(3, dataset="digits"), clients(5, dataset="digits,digits-colour")
        assert [client.domain for client in listed] == [0, 1, 0, 1, 0]
        assert len(rows(listed[1].train, listed[1].validation, listed[1].test)) == 899
        for one, other in zip(alone, listed[::2], strict=True):
            assert torch.equal(one.train.rows, other.train.rows)
            assert torch.equal(one.train.batch(torch.arange(9))[0], other.train.batch(torch.arange(9))[0])

    @pytest.mark.parametrize(
        ("text", "columns"),
        [
            ("", ("", "")),
            ("img", ("img", "img")),
            (",fine", ("", "fine")),
            ("image, img", ("image", "img")),
            ('"sick, now"', ("sick, now", "sick, now")),
            ('ill,"sick, now"', ("ill", "sick, now")),
        ],
    )
    def test_columns_are_named_for_all_or_for_each(self, text, columns):
        places = [Reading(label_column=text).of(k, 2) for k in (0, 1)]
        assert tuple(place.label_column for place in places) == columns
        assert [place.image_column for place in places] == ["", ""]
        assert [Reading(image_column=one).of(0, 1).image_column for one in ("x,y", '"x,y"')] == ["x,y"] * 2


class TestNames:
    def test_a_name_stands_for_one_domain_or_four(self):
        turned, digits = data_sets(" rotated-owner/name , digits")
        told = (turned.name, turned.base, turned.is_rotated, len(turned.domain_names))
        assert told == ("rotated-owner/name", "owner/name", True, 4)
        assert (digits.name, digits.base, digits.is_rotated, len(digits.domain_names)) == ("digits", "digits", False, 1)

    @pytest.mark.parametrize(
        ("dataset", "said"),
        [
            ("", "''"),
            ("digits,,mnist", "empty"),
            ("digits, digits", "'digits'"),
            ("digits,rotated-digit", "'rotated-digits'"),
            ("rotated-rotated-mnist", "twice"),
            ("rotated-breast-cancer", "'breast-cancer'"),
        ],
    )
    def test_a_name_that_will_not_do_is_refused(self, refusal, dataset, said):
        assert said in refusal(ConfigError, load, dataset=dataset)
        assert said in refusal(ConfigError, data_spec, dataset)
        assert "label-column 'x,y,z'" in refusal(ConfigError, data_spec, "a/b,c/d", Reading(label_column="x,y,z"))
        assert "4 or 8 clients" in refusal(ConfigError, load, num_partitions=6, shared_split=True)

    @pytest.mark.parametrize("name", ["breast-cancer", "digits", "digits-colour", "rotated-digits"])
    def test_the_catalogue_tells_the_truth(self, name):
        row = next(SimpleNamespace(**row) for row in facts.datasets("") if row["name"] == name)
        data = clients(row.domains, dataset=name)
        assert (row.where, row.source, tuple(row.shape)) == ("bundled", "scikit-learn", data[0].spec.shape)
        assert row.samples == sum(len(one.train) + len(one.validation) + len(one.test) for one in data)
        assert load(dataset=name, partition_id=row.domains, num_partitions=row.domains + 1).domain == 0
        whole = load(dataset=name, test="global").train.arrays
        assert whole.labels.unique().tolist() == list(range(row.classes)) == list(range(data[0].spec.classes))
        assert list(whole.inputs.shape[1:]) == row.shape


class TestColouredDigits:
    def test_they_are_made_the_same_everywhere(self):
        arrays = load(dataset="digits-colour").train.arrays
        assert arrays.inputs.shape == (1797, 3, 16, 16)
        assert hashlib.sha256(arrays.inputs.numpy().tobytes()).hexdigest() == (
            "d8a76ba3ac9043d8cfa1fd9e92365a9c1466702d9a94ca326c3c26765444f403"
        )


class TestPublicRows:
    def test_they_are_the_first_training_rows_and_training_keeps_them(self):
        without, data = load(public_fraction=0.0), load(public_fraction=0.3)
        assert len(without.public) == 0
        assert torch.equal(data.train.rows, without.train.rows)
        assert torch.equal(data.public.rows, data.train.rows[:300])

    @pytest.mark.parametrize(
        ("partition_id", "count", "fraction", "public"),
        [(0, 10, 0.1, 18), (0, 599, 0.01, 1), (0, 599, 0.99, 1), (897, 898, 0.2, 0), (897, 898, 0.9, 2)],
    )
    def test_three_rows_have_one_of_them_public_and_never_more_than_train(self, partition_id, count, fraction, public):
        """Of 1,797 rows each of 10 clients has 180, each of 599 has 3 and trains on 1, the last of 898 trains on 2."""
        place = {"partition_id": partition_id, "num_partitions": count}
        data = load(dataset="digits", public_fraction=fraction, **place)
        assert len(data.public) == data.public_rows == public

    def test_stored_rows_come_back_as_they_were_under_the_own_preparation(self):
        here, there = load(), load(partition_id=1)
        inputs, labels = there.public.stored()
        assert (len(inputs), inputs.dtype) == (100, torch.uint8)
        assert torch.equal(inputs, there.train.arrays.inputs[there.public.rows])
        prepared, given = here.train.like(inputs, labels).batch(torch.tensor([3, 0]))
        assert torch.equal(prepared, inputs[[3, 0]].float() / 16 - here.train.arrays.centre)
        assert torch.equal(given, labels[[3, 0]])
        assert len(here.train.like(*here.train.first(0).stored())) == 0

    def test_all_of_a_client_s_samples_move_to_a_device(self):
        data = load().to(torch.device("meta"))
        moved = (data.train, data.validation, data.test, data.public, *data.others)
        assert [samples.arrays.inputs.device.type for samples in moved] == ["meta"] * 7
        assert (data.domain, data.public_rows, data.spec) == (0, 100, DataSpec((1, 8, 8), 10))


class TestJoined:
    @settings(max_examples=40)
    @given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
    def test_it_is_the_parts_one_after_the_other(self, sizes, seed):
        """Parts of one shape with a peak and a centre of their own, of rows in random order."""
        draw, total = np.random.default_rng(seed), sum(sizes)
        parts = tuple(
            Samples(toy(12, peak=float(number)), torch.from_numpy(draw.permutation(12)[:size]))
            for number, size in enumerate(sizes, 1)
        )
        joined = Samples.joined(parts)
        whole = [part.batch(torch.arange(len(part))) for part in parts]
        inputs, labels = (torch.cat(column) for column in zip(*whole, strict=True))
        chosen = torch.from_numpy(draw.integers(0, max(total, 1), 7 if total else 0))
        batch = joined.batch(chosen)
        assert len(joined) == total
        assert torch.equal(joined.labels, labels)
        assert torch.equal(joined.class_counts(3), torch.bincount(labels, minlength=3))
        assert torch.equal(batch[0], inputs[chosen])
        assert torch.equal(batch[1], labels[chosen])
        assert batch[0].shape == (len(chosen), 1, 2, 2)
        with pytest.raises(IndexError, match=f"{total}"):
            joined.batch(torch.tensor([0, total]))


@pytest.mark.parametrize("keys", [{}, {"text_column": "note", "vocabulary": "shared:9"}, {"features": "slices:0.5"}])
def test_what_was_read_of_a_file_is_forgotten_before_it_is_read_again(tmp_path, keys):
    rows = "".join(f"{row % 7},{row % 5},a day {row % 3},{row % 2}\n" for row in range(40))
    (tmp_path / "t.csv").write_text(f"age,size,note,sick\n{rows}")
    dataset = str(tmp_path / "t.csv")
    data = load(dataset=dataset, label_column="sick", partition="natural:size", num_partitions=2, **keys)
    reading = Reading(label_column="sick", id_column="size", **{k: v for k, v in keys.items() if k != "features"})
    [family] = data_sets(dataset, reading)
    read = [weakref.ref(family.source), weakref.ref(family.arrays(0, True)[0]), weakref.ref(data.train.arrays)]
    del family, data
    gc.collect()
    assert all(one() for one in read[:2])
    reread(dataset)
    gc.collect()
    assert [one() for one in read] == [None] * 3


def test_the_settings_reach_the_node(make_config, make_node):
    """Of 1,000 rows over two clients a domain, 500 each: 0.3 of them public, 0.2 for the test."""
    keys = {"dataset": "rotated-digits", "clients": 8, "public_fraction": 0.3, "models": "mlp"}
    own, same = (make_node(make_config(**keys, shared_split=shared), 5).data for shared in (False, True))
    assert (own.domain, len(own.public), len(own.test)) == (1, 150, 100)
    assert [len(other) for other in own.others] == [200, 200, 200]
    assert not torch.equal(own.test.rows, same.test.rows)
    table = make_node(make_config(dataset="breast-cancer", features="slices:0.4", models="mlp"))
    assert table.data.spec.shape == (21,)  # 15 of 30, and 0.4 x 15


STYLES = ["photo", "art", "photo", "sketch", "art", "photo"]


@pytest.fixture
def zoo(tmp_path):
    """Image i is grey 10 i, of class i % 3 and style ``STYLES[i]``; the test split has one of each style."""
    test = table([grey(200), grey(210), grey(220)], [0, 1, 2], style=["sketch", "photo", "art"])
    return write(tmp_path, train=table(style=STYLES), test=test)


def load_zoo(root, partition_id=0, num_partitions=3, **keys):
    own = {"dataset": "zoo/pets", "domain_column": "style", "seed": 0, "validation_fraction": 0.0} | keys
    return load_client(data_dir=str(root), partition_id=partition_id, num_partitions=num_partitions, **own)


def greys(samples):
    return samples.stored()[0][:, 0, 0, 0].tolist()


def test_each_value_is_a_domain_in_sorted_order(zoo):
    """The means of the domains are 25, 70 / 3 and 30: their mean is 26 1/9."""
    data = [load_zoo(zoo, k, test="global") for k in range(3)]
    assert [client.domain for client in data] == [0, 1, 2]
    assert [sorted(greys(client.train)) for client in data] == [[10, 40], [0, 20, 50], [30]]
    assert [greys(client.test) for client in data] == [[220], [210], [200]]
    assert [greys(other) for other in data[1].others] == [[220], [200]]
    assert data[0].train.labels.tolist() == [greys_of // 10 % 3 for greys_of in greys(data[0].train)]
    for samples in (data[0].train, data[1].train, data[1].others[0]):
        assert torch.allclose(samples.arrays.centre, torch.full((1, 4, 5), (25 + 70 / 3 + 30) / 3 / 255))


def test_more_clients_than_domains_share_them_out_and_fewer_leave_some(zoo):
    shares = [load_zoo(zoo, k, 5, test_fraction=0.0) for k in range(5)]
    assert [client.domain for client in shares] == [0, 1, 2, 0, 1]
    assert sorted(greys(shares[1].train) + greys(shares[4].train)) == [0, 20, 50, 210]
    assert load_zoo(zoo, 0, 2).others[0].arrays is load_zoo(zoo, 1, 2).train.arrays


def test_all_domains_are_views_of_one_array(zoo):
    families = data_sets("zoo/pets", Reading(str(zoo), domain_column="style"))
    assert len(families[0].domain_names) == 3
    domains = families[0].arrays(0, True)
    assert len({arrays.inputs.untyped_storage().data_ptr() for arrays in domains}) == 1
    assert [(arrays.train_rows, len(arrays.labels)) for arrays in domains] == [(2, 3), (3, 4), (1, 2)]


def test_domains_of_a_list_follow_those_before_them(zoo):
    seats = [load_zoo(zoo, k, 4, dataset="digits,zoo/pets", domain_column=",style") for k in range(4)]
    assert [client.spec.shape for client in seats] == [(1, 8, 8), *[(1, 4, 5)] * 3]
    assert [client.others for client in seats] == [()] * 4


def test_tables_and_texts_have_domains_as_well(tmp_path):
    rows = {
        "age": [3, 1, 2, 5],
        "note": ["b", "a a", "c", "d"],
        "ward": [9, 4, 9, 4],
        "sick": ["no", "no", "yes", "yes"],
    }
    lay(tmp_path / "zoo/pets", {"train.parquet": rows})
    keys = {"domain_column": "ward", "label_column": "sick", "test_fraction": 0.0, "normalize": "none"}
    ages = [load_zoo(tmp_path, k, 2, ignore_columns="note", **keys) for k in range(2)]
    assert [sorted(client.train.stored()[0].flatten().tolist()) for client in ages] == [[1, 5], [2, 3]]
    assert ages[0].spec == DataSpec((1,), 2)
    keys |= {"text_column": "note", "text_length": 2, "vocabulary": "shared:9"}
    texts = [load_zoo(tmp_path, k, 2, **keys) for k in range(2)]
    assert [sorted(client.train.stored()[0].tolist()) for client in texts] == [[[2, 2], [5, 0]], [[3, 0], [4, 0]]]


def test_owners_are_numbered_by_sorted_values(zoo):
    """Those of a rotated family go with the images drawn."""

    def owners(dataset="zoo/pets", domain="", column="style"):
        [family] = data_sets(dataset, Reading(str(zoo), domain_column=domain, id_column=column))
        return family.arrays(0, True)[0].owners

    assert owners(column="") is None
    assert owners().tolist() == [1, 0, 1, 2, 0, 1, 2, 1, 0]
    assert owners(domain="style").tolist() == [0] * 3
    assert sorted(owners("rotated-zoo/pets")[:6]) == [0, 0, 1, 1, 1, 2]


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
    assert said in refusal((DataError, ConfigError), load_zoo, tmp_path, **keys)


@pytest.mark.skipif("HETFL_DATA_DIR" not in os.environ, reason="HETFL_DATA_DIR names no folder of data sets")
def test_pacs_is_four_domains_by_name():
    place = {"dataset": "pacs", "domain_column": "", "test_fraction": 0.15, "image_size": 32}
    data = [load_zoo(os.environ["HETFL_DATA_DIR"], k, 4, **place) for k in range(4)]
    assert [len(client.train.arrays.labels) for client in data] == [2048, 2344, 1670, 3929]
    assert [client.spec for client in data] == [DataSpec((3, 32, 32), 7)] * 4
    assert [len(client.others) for client in data] == [3] * 4


def test_of_a_list_what_cannot_be_opened_is_named_before_kinds_that_differ(tmp_path):
    """Without its label column a file has no kind, which is not to say that it is images."""
    whole, lacking = (tmp_path / f"{name}.csv" for name in ("whole", "lacking"))
    whole.write_text("a,sick\n" + "1,yes\n2,no\n" * 20)
    lacking.write_text("a,ill\n" + "1,yes\n2,no\n" * 20)
    with pytest.raises(DataError, match=r"lacking\.csv' has no column 'sick'"):
        kind_of(f"{whole},{lacking}", Reading(label_column="sick"))
    with pytest.raises(ConfigError, match="several kinds"):
        kind_of(f"{whole},digits", Reading(label_column="sick,"))
