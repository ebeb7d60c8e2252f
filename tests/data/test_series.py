"""Time series: read from lists, arrays and the UCI archive's files, scaled, learnt from, exported and predicted."""

import json
import os
from dataclasses import replace
from functools import partial
from typing import ClassVar

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from fixtures.data.columns import lay, noted, write_csv
from fixtures.data.loading import arrays_of, load_client, load_clients
from fixtures.zoo import assert_is_a_model_of_the_zoo
from torch.utils.data import TensorDataset

from hetfl_flwr import export, run
from hetfl_flwr.data import DataSpec, Reading, cache, data_spec, kind_of, parse_pivot, series
from hetfl_flwr.data.arrays import CHANNELS
from hetfl_flwr.data.bundled import read_waveform
from hetfl_flwr.data.samples import MAX_DEVIATIONS
from hetfl_flwr.data.scaling import scaled_alone
from hetfl_flwr.errors import ConfigError, DataError
from hetfl_flwr.models import build_model, parameter_count
from simulations.engine.objects import stored
from simulations.inference.loading import load_client as load_trained
from simulations.inference.predict import predict
from simulations.testing import AlgorithmContract

ROWS, CHANNEL_COUNT, LENGTH = 60, 3, 16
NAMES = ["conv1d:small", "conv1d:medium", "conv1d:large"]
HAR = DataSpec((9, 128), 6)


@pytest.fixture
def arrays():
    """Return inputs, labels and owners: in each channel a wave whose frequency is the class, and noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(ROWS) % 3
    phase = rng.uniform(0, 2 * np.pi, (ROWS, CHANNEL_COUNT, 1))
    waves = np.sin((labels[:, None, None] + 1) * np.arange(LENGTH) * 2 * np.pi / LENGTH + phase)
    noisy = (waves * [[1], [10], [0.1]] + [[5], [0], [-3]] + rng.normal(size=waves.shape) * 0.01).astype(np.float32)
    return {"x": noisy, "y": labels, "owner": np.repeat(["ann", "bob", "cy"], ROWS // 3)}


@pytest.fixture
def saved(tmp_path):
    """Return what writes arrays to an .npz file, and returns its path."""

    def save(name="data.npz", **columns):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.savez(tmp_path / name, **columns)
        return str(tmp_path / name)

    return save


@pytest.fixture
def trained(make_config, run_federation, tmp_path):
    """Return what trains each client alone for a round, and returns the folder of the run."""

    def train(dataset, name="run", **keys):
        own = {"algorithm": "local", "rounds": 1, "checkpoint_every": 1, "models": "conv1d:small", "width": 0}
        return run_federation(make_config(dataset=str(dataset), output_dir=str(tmp_path / name), **own | keys))

    return train


def same(inputs, expected):
    return torch.equal(inputs, torch.from_numpy(expected))


def every(samples):
    return samples.batch(torch.arange(len(samples)))[0]


class TestReading:
    def test_an_npz_file_has_inputs_labels_and_owners_by_convention(self, arrays, saved):
        data = load_client(dataset=saved(**arrays), num_partitions=3, partition_id=1, partition="natural:owner")
        assert (data.spec, data.name) == (DataSpec((CHANNEL_COUNT, LENGTH), 3), "bob")
        mine = torch.cat([part.rows for part in (data.train, data.validation, data.test)]).sort().values
        assert mine.tolist() == list(range(20, 40))
        assert same(data.train.arrays.inputs, arrays["x"])
        assert (data.train.arrays.labels.tolist(), data.train.arrays.notes) == (arrays["y"].tolist(), ())

    def test_its_keys_are_columns(self, arrays, saved):
        file = saved(signal=arrays["x"], other=arrays["x"] + 1, mood=arrays["y"][:, None])
        for number, name in enumerate(("signal", "other")):
            assert same(arrays_of(file, series_column=name, label_column="mood").inputs, arrays["x"] + number)

    @pytest.mark.parametrize("kind", ["lists", "fixed lists", "array", "json", "jsonl"])
    def test_a_column_of_lists_is_one_series_a_row(self, kind, arrays, tmp_path):
        rows, inner = {"x": arrays["x"].tolist(), "y": arrays["y"].tolist()}, datasets.Value("float32")
        features = {
            "lists": datasets.List(datasets.List(inner)),
            "fixed lists": datasets.List(datasets.List(inner, length=LENGTH), length=CHANNEL_COUNT),
            "array": datasets.Array2D((CHANNEL_COUNT, LENGTH), "float32"),
        }
        if kind in features:
            declared = datasets.Features(x=features[kind], y=datasets.ClassLabel(3))
            rows, kind = datasets.Dataset.from_dict(rows, features=declared), "parquet"
        assert same(arrays_of(lay(tmp_path, {f"data.{kind}": rows}) / f"data.{kind}").inputs, arrays["x"])

    def test_missing_values_hold_in_lists(self, tmp_path, refusal):
        rows = [{"x": [1.0, -999 if row == 7 else 2.0, row], "y": row % 2} for row in range(ROWS)]
        place = lay(tmp_path, {"t.json": json.dumps(rows)})
        assert arrays_of(place).inputs[7, 0, 1] == -999
        assert "row 8" in refusal(DataError, arrays_of, place, missing_values="-999")

    def test_a_flat_list_is_one_channel(self, arrays, saved):
        found = arrays_of(saved(x=arrays["x"][:, 0], y=arrays["y"]))
        assert found.spec.shape == (1, LENGTH)
        assert same(found.inputs, arrays["x"][:, :1])

    def test_fewer_lists_are_the_channels_and_a_note_says_so_unless_a_key_does(self, arrays, saved, refusal):
        turned = saved(x=arrays["x"].swapaxes(1, 2), y=arrays["y"])
        found, asked = arrays_of(turned), arrays_of(turned, series_layout="channels-last")
        assert same(found.inputs, arrays["x"])
        assert same(asked.inputs, arrays["x"])
        assert (f"{CHANNEL_COUNT} channels" in found.notes[0], asked.notes) == (True, ())
        assert same(arrays_of(turned, series_layout="channels-first").inputs, arrays["x"].swapaxes(1, 2))
        square = saved("square.npz", x=arrays["x"][:, :, :3], y=arrays["y"])
        assert "series-layout" in refusal(DataError, arrays_of, square)
        first, last = (arrays_of(square, series_layout=f"channels-{one}").inputs for one in ("first", "last"))
        assert torch.equal(first, last.swapaxes(1, 2))

    @pytest.mark.parametrize("keys", [{}, {"series_column": "x"}])
    def test_other_columns_are_left_out_with_a_line(self, keys, arrays, saved):
        [line] = [line for line in arrays_of(saved(**arrays), **keys).facts if "left out" in line]
        assert "'owner'" in line

    def test_a_large_set_is_read_batch_by_batch_into_one_file(self, arrays, saved, monkeypatch, tmp_path):
        monkeypatch.setattr(cache, "SMALL", 0)
        monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path / "cache")
        monkeypatch.setattr(series.Layout, "batch", 7)
        assert same(arrays_of(saved(**arrays)).inputs, arrays["x"])
        assert len([*(tmp_path / "cache").iterdir()]) == 1

    def test_a_folder_of_npz_files_has_splits_or_owners(self, arrays, saved, tmp_path):
        for number, names in enumerate([("splits/train", "owners/ann"), ("splits/test", "owners/bob")]):
            for name in names:
                saved(f"{name}.npz", x=arrays["x"][number::2], y=arrays["y"][number::2])
        data = load_client(dataset=tmp_path / "splits", test="global")
        assert same(data.test.stored()[0], arrays["x"][1::2])
        owners = load_clients(2, dataset=tmp_path / "owners", partition="files")
        assert [one.name for one in owners] == ["ann", "bob"]

    def test_the_kind_is_known_before_a_row_is(self, arrays, saved):
        assert {
            *(kind_of(saved(**arrays)), kind_of("", Reading(series_column="signal")), kind_of("har")),
            *(kind_of("owner/name", Reading(series_column="s")), data_spec(saved(**arrays)).kind),
        } == {"series"}
        assert data_spec("har") == HAR


def spoilt(arrays, row, value):
    x = arrays["x"].copy()
    x[row, 1, 4] = value
    return {**arrays, "x": x}


OF_ARRAYS = {
    "ragged": (lambda a: {"x": np.array([[1], [2, 3]], dtype=object), "y": [0, 1]}, "array 'x'"),
    "rows": (lambda a: {**a, "y": a["y"][:-1]}, "'y' of shape (59,)"),
    "missing": (lambda a: spoilt(a, 41, np.nan), ", row 42:"),
    "infinite": (lambda a: spoilt(a, 0, np.inf), ", row 1:"),
    "empty": (lambda a: {**a, "x": a["x"][:, :, :0]}, "(60, 3, 0)"),
    "deep": (lambda a: {**a, "x": a["x"][..., None]}, "lists of lists of lists"),
    "two": (lambda a: {**a, "z": a["x"]}, "x, z"),
    "nothing": (lambda a: {}, "no array"),
}


class TestRefusals:
    @pytest.mark.parametrize("case", OF_ARRAYS)
    def test_arrays_that_are_no_series(self, case, arrays, saved, refusal):
        make, said = OF_ARRAYS[case]
        assert said in refusal(DataError, arrays_of, saved(f"{case}.npz", **make(arrays)))

    def test_files_that_are_no_series(self, arrays, saved, tmp_path, refusal):
        """Nothing is unpickled, and files of two kinds are not mixed."""
        lay(tmp_path, {"data.npz": b"cos\nsystem\n(S'true'\ntR.", "both/train.csv": "a,label\n1,0\n2,1\n"})
        saved("both/more.npz", x=arrays["x"], y=arrays["y"])
        for place in (tmp_path / "data.npz", tmp_path / "both"):
            assert str(place) in refusal(DataError, arrays_of, place)

    @pytest.mark.parametrize(
        ("lists", "words"),
        [
            (
                {7: [[1.0] * 16, [1.0] * 9, [1.0] * 16], 30: [[1.0, 2.0]], 50: None},
                ["row 8", "3 x 9 to 16", "3 x 16", "2 more"],
            ),
            ({51: [[None, *[1.0] * 15], *[[1.0] * 16] * 2]}, ["missing", "row 52"]),
        ],
    )
    def test_lists_of_other_lengths_or_with_gaps_are_counted_and_the_first_is_named(
        self, lists, words, arrays, tmp_path, refusal
    ):
        x = [lists.get(row, series) for row, series in enumerate(arrays["x"].tolist())]
        rows = datasets.Dataset.from_dict({"x": x, "y": arrays["y"]})
        line = refusal(DataError, arrays_of, lay(tmp_path, {"data.parquet": rows}), label_column="y")
        assert [word for word in words if word not in line] == []

    def test_owners_whose_files_differ_in_length_are_named(self, arrays, saved, tmp_path, refusal):
        for name, length in (("ann", 16), ("bob", 12)):
            saved(f"owners/{name}.npz", x=arrays["x"][:, :, :length], y=arrays["y"])
        said = refusal(DataError, arrays_of, tmp_path / "owners", partition="files", num_partitions=2)
        assert ("59 more" in said, "row 1 of file 'bob'" in said) == (True, True)

    @pytest.mark.parametrize("column", ['"[1, 2]"', "3"])
    def test_a_csv_file_has_no_lists(self, column, tmp_path, refusal):
        folder = write_csv(tmp_path / "csv", train=f"s,label\n{column},0\n{column},1\n")
        assert "lists" in refusal(DataError, arrays_of, folder, series_column="s", label_column="label")

    def test_what_is_for_other_data_is_refused(self, arrays, saved, refusal, make_config, make_node):
        file = saved(**arrays)
        for keys, said in (
            ({"features": "slices:0.5"}, "features"),
            ({"normalize": "imagenet"}, "mean-image"),
            ({"series_column": "x", "text_column": "x"}, "text-column and series-column"),
        ):
            assert said in refusal(ConfigError, arrays_of, file, **keys)
        assert "rotated-" in refusal(ConfigError, arrays_of, f"rotated-{file}")
        augmented = make_config(algorithm="local", dataset="waveform", augment="crop", models="conv1d:small")
        assert "augment" in refusal(ConfigError, make_node, augmented, 0)


class TestLongTables:
    """A row for each point in time, in any order, as pandas pivots it."""

    KEYS: ClassVar = {"pivot": "patient, hour, sign, value", "label_column": "sick"}

    @pytest.fixture
    def long(self):
        """Return rows of 8 patients, 5 hours and 2 signs."""
        draw = np.random.default_rng(0)
        keys = [(f"p{patient}", hour, sign) for patient in range(8) for hour in range(5) for sign in ("pulse", "bp")]
        rows = pd.DataFrame(keys, columns=["patient", "hour", "sign"])
        rows["value"], rows["nurse"] = draw.normal(size=len(rows)).round(3), draw.integers(0, 3, len(rows))
        rows["sick"] = ["no" if int(patient[1:]) % 2 else "yes" for patient in rows.patient]
        return rows.sample(frac=1, random_state=0)

    @staticmethod
    def expected(long):
        """Return the series by hand, patients in the order of their first rows."""
        wide = long.pivot(index=["patient", "sign"], columns="hour", values="value")
        return np.stack([wide.loc[patient].loc[["bp", "pulse"]] for patient in dict.fromkeys(long.patient)])

    def test_each_series_is_one_row_and_columns_that_differ_within_one_are_left_out(self, long, tmp_path):
        found = arrays_of(lay(tmp_path, {"long.csv": long}), **self.KEYS)
        np.testing.assert_array_equal(found.inputs, self.expected(long).astype(np.float32))
        assert found.input_names == ("bp", "pulse")
        sick = long.drop_duplicates("patient").sick
        assert [found.class_names[label] for label in found.labels] == sick.tolist()
        [line] = [line for line in found.facts if "left out" in line]
        assert ("'nurse'" in line, "'sick'" in line) == (True, False)

    def test_dates_decimal_commas_units_and_codes_are_read_as_in_tables(self, long, tmp_path):
        dates = pd.Timestamp("2024-01-31") + pd.to_timedelta(long.hour, unit="D")
        values = long.value.map("{:.3f} mV".format).str.replace(".", ",")
        own = long.assign(hour=dates.dt.strftime("%d.%m.%Y"), value=values)
        found = arrays_of(lay(tmp_path, {"long.csv": own.to_csv(sep=";", index=False)}), **self.KEYS)
        np.testing.assert_array_equal(found.inputs, self.expected(long).astype(np.float32))
        assert found.input_names == ("bp (mV)", "pulse (mV)")
        coded = long.assign(value=[[0.5, 1.5, 2.5, -999][row % 4] for row in range(len(long))])
        coded = arrays_of(lay(tmp_path / "coded", {"long.csv": coded}), **self.KEYS)
        assert noted(coded, "column 'value'", "missing-values=-999")

    def test_one_channel_needs_no_name_and_series_own_themselves(self, long, tmp_path):
        pulse = long[long.sign == "pulse"]
        keys = {**self.KEYS, "pivot": "patient,hour,value", "partition": "natural:patient", "num_partitions": 2}
        data = load_client(dataset=lay(tmp_path, {"long.csv": pulse}), **keys)
        wide = pulse.pivot(index="patient", columns="hour", values="value").loc[[*dict.fromkeys(pulse.patient)]]
        np.testing.assert_array_equal(data.train.arrays.inputs[:, 0], wide.astype(np.float32))
        assert data.name == "p0 + p2 + p4 + p6"

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda rows: rows.iloc[1:], "at 4 of 5 times"),
            (lambda rows: pd.concat([rows, rows.iloc[:1]]), "row 82 of"),
            (lambda rows: rows.assign(sick=["yes", "no"] * 40), "differs within one patient"),
            (lambda rows: rows.assign(hour=rows.hour.where(rows.hour > 0)), "'hour'"),
            (lambda rows: rows.rename(columns={"hour": "time"}), "no column 'hour'"),
            (lambda rows: rows[(rows.patient != "p3") | (rows.hour > 1)], "2 x 3, not 2 x 5"),
            (lambda rows: rows.assign(value=rows.value.where(rows.value > -1)), "missing"),
        ],
    )
    def test_what_is_no_series_is_refused(self, change, said, long, tmp_path, refusal):
        assert said in refusal(DataError, arrays_of, lay(tmp_path, {"long.csv": change(long)}), **self.KEYS)
        assert "SERIES" in refusal(ConfigError, parse_pivot, "patient,hour")

    def test_series_of_two_files_are_two(self, long, tmp_path):
        wards = lay(tmp_path, {"north.csv": long, "south.csv": long})
        data = load_client(dataset=wards, partition="files", num_partitions=2, partition_id=1, **self.KEYS)
        assert (len(data.train.arrays.labels), data.name) == (16, "south")
        assert not noted(data.train.arrays, "occur in several files")
        assert noted(arrays_of(wards, **self.KEYS), "8 values of column 'patient'", "occur in several files")

    def test_they_are_predicted_from_a_long_table(self, long, tmp_path, trained, refusal, capsys):
        path = lay(tmp_path, {"long.csv": long}) / "long.csv"
        folder = trained(path, clients=2, **self.KEYS)
        found = predict(folder, path, 0)
        assert [*found.names] == [*dict.fromkeys(long.patient)]
        assert "columns that the model does not know are ignored: 'nurse'\n" in capsys.readouterr().err
        node = load_trained(folder, 0)
        with torch.no_grad():
            scores = node.model(every(replace(node.data.train, rows=torch.arange(8)))).softmax(1).max(1).values
        np.testing.assert_allclose(found.scores, scores, rtol=1e-4)
        lay(tmp_path, {"other.csv": long.replace({"sign": {"bp": "temperature"}})})
        assert "'temperature'" in refusal(DataError, predict, folder, tmp_path / "other.csv", 0)
        lay(tmp_path, {"missing.csv": long.assign(value=long.value.where(long.patient != "p3", -999))})
        found = predict(trained(path, "coded", missing_values="-999", **self.KEYS), tmp_path / "missing.csv", 0)
        assert (len(found.classes), ["missing" in line for line in found.unreadable]) == (7, [True])


class TestScale:
    def test_each_channel_has_mean_0_and_deviation_1_over_the_clients_own_training_rows(self, arrays, saved):
        arrays["x"][:, 2] = 7.25  # a channel that says nothing
        data, other, _ = load_clients(3, dataset=saved(**arrays), partition="natural:owner")
        mine = arrays["x"][data.train.rows]
        mean, deviation = mine.mean(axis=(0, 2)), mine.std(axis=(0, 2))
        expected = (arrays["x"][data.test.rows] - mean[:, None]) / np.where(deviation > 0, deviation, np.inf)[:, None]
        torch.testing.assert_close(every(data.test), torch.from_numpy(expected), rtol=1e-4, atol=1e-4)
        assert not every(data.test)[:, 2].any()
        assert not torch.equal(other.train.arrays.peak, data.train.arrays.peak)

    @pytest.mark.parametrize(
        ("offset", "kept"),
        [
            (1_700_000_000, torch.float64),
            (np.repeat([1.7e9, 1.8e9, 1.9e9], ROWS // 3)[:, None, None], torch.float64),
            (5.1, torch.float32),
        ],
        ids=["seconds since 1970", "years between owners", "small"],
    )
    def test_channels_that_float32_does_not_tell_apart_keep_their_changes(self, offset, kept, arrays, saved):
        """The last channel never changes, and does not count."""
        wide = arrays["x"].astype(np.float64) + offset
        wide[:, 2] = 0.1
        data = load_client(dataset=saved(**arrays | {"x": wide}), num_partitions=3, partition="natural:owner")
        own = wide[data.train.rows]
        assert data.train.arrays.inputs.dtype == kept
        mean, deviation = (moment(own, axis=(0, 2), keepdims=True) for moment in (np.mean, np.std))
        expected = np.where(np.arange(3)[:, None] < 2, (own - mean) / np.where(deviation < 1e-12, 1, deviation), 0)
        np.testing.assert_allclose(every(data.train), expected, atol=1e-4)

    def test_none_leaves_them_as_they_are_and_pooled_ones_are_scaled_by_all(self, arrays, saved):
        keys = {"dataset": saved(**arrays), "num_partitions": 2}
        raw, pooled = load_client(normalize="none", **keys), load_client(pooled=True, **keys)
        assert torch.equal(every(raw.train), raw.train.stored()[0])
        assert len(pooled.train) > len(raw.train)
        means = every(pooled.train).mean(dim=(0, 2))
        torch.testing.assert_close(means, torch.zeros(CHANNEL_COUNT), atol=1e-5, rtol=0)

    def test_samples_of_others_are_cut_to_what_can_be_and_those_shown_are_scaled_by_themselves(self, arrays, saved):
        mine = load_client(dataset=saved(**arrays), num_partitions=2).train
        inputs, labels = mine.stored()
        inputs[0, 1, 3] = 1e30
        far = mine.like(inputs, labels).batch(torch.tensor([0]))[0]
        assert float(far.max()) == pytest.approx(MAX_DEVIATIONS, rel=1e-3)
        shown = every(scaled_alone(arrays["x"], DataSpec((CHANNEL_COUNT, LENGTH), 3), "mean-image"))
        torch.testing.assert_close(shown.std(dim=(0, 2), correction=0), torch.ones(CHANNEL_COUNT))


class TestModels:
    @pytest.mark.parametrize("spec", [HAR, DataSpec((1, 21), 3), DataSpec((3, 4), 2)], ids=["har", "waveform", "short"])
    @pytest.mark.parametrize("name", [*NAMES, "conv1d:large@0.25", "mlp", "tabular:4"])
    def test_trains_splits_and_survives_a_state(self, name, spec):
        assert_is_a_model_of_the_zoo(name, spec)

    def test_parameters_by_hand(self):
        """Of the large one, 128 points become 120, 60, 52 and 26, so 64 x 26 numbers go into its linear layers."""
        convolutions = 9 * 9 * 32 + 32 + 32 * 9 * 64 + 64
        linear = 64 * 26 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 6 + 6
        small, medium, large = (parameter_count(build_model(name, HAR, seed=0)) for name in NAMES)
        assert large == convolutions + linear
        assert large > 15 * medium > 75 * small
        assert {build_model(name, HAR, seed=0, width=64).width for name in NAMES} == {64}


class TestWaveform:
    def test_each_wave_lies_between_two_triangles(self):
        """The mean of class 0 is the half sum of the triangles around 11 and 15; the deviation is that of the noise, 1,
        and where a triangle ends, 2 points before the other begins to count, no place moves it."""
        found = read_waveform()
        assert found.inputs.shape == (5000, 1, 21)
        time = np.arange(1, 22)
        triangles = {peak: np.maximum(6 - abs(time - peak), 0) for peak in (7, 11, 15)}
        for label, pair in enumerate([(11, 15), (11, 7), (15, 7)]):
            mine = found.inputs[found.labels == label, 0].numpy()
            expected = sum(triangles[peak] for peak in pair) / 2
            np.testing.assert_allclose(mine.mean(axis=0), expected, atol=6 * 2 / np.sqrt(len(mine)))
            np.testing.assert_allclose(mine[:, expected == 0].std(axis=0), 1, atol=0.1)

    def test_training_alone_beats_the_majority_class(self, tmp_path):
        result = run("local", dataset="waveform", clients=3, rounds=10, models="conv1d", out=tmp_path / "run")
        last = result.clients[result.clients["round"] == 10]
        assert (last["accuracy"] > last["majority"] + 0.2).all()


class TestContract(AlgorithmContract):
    """One method on series, with three sizes of models, keeps to what every method does."""

    algorithm = "fedproto"
    keys: ClassVar = {
        **{"dataset": "waveform", "partition": "classes:2", "test-fraction": 0.85},
        **{"models": "conv1d:small,conv1d:medium", "width": 16},
    }


@pytest.mark.parametrize("algorithm", ["fedh2l", "feddf", "heterofl", "fedkd"])
def test_methods_that_show_samples_average_or_train_small_models_take_series(algorithm, tmp_path):
    result = run(algorithm, dataset="waveform", clients=4, rounds=1, test_fraction=0.8, feddf={"server-steps": 2})
    assert result.summary["failures"] == 0
    assert all(name.startswith("conv1d") for name in result.clients["model"])


class Two(torch.utils.data.Dataset):
    """Two series of unlike lengths."""

    def __len__(self):
        return 2

    def __getitem__(self, number):
        return torch.zeros(2, 5 + number), number


class TestFromPython:
    @pytest.mark.parametrize("kind", ["arrays", "tensors", "frame", "nested frame", "torch"])
    def test_series_of_python_are_read(self, kind, arrays):
        x, y = arrays["x"], arrays["y"]
        given = {
            "arrays": partial(dict, x=x, y=y),
            "tensors": partial(dict, x=torch.from_numpy(x), y=torch.from_numpy(y)),
            "frame": partial(pd.DataFrame, {"x": [*map(list, x[:, 0])], "y": y}),
            "nested frame": partial(pd.DataFrame, {"x": [*x], "y": y}),
            "torch": partial(TensorDataset, torch.from_numpy(x), torch.from_numpy(y)),
        }[kind]()
        folder, several = stored(given, "x" if kind == "torch" else "")
        assert not several
        found = arrays_of(folder)
        assert same(found.inputs, x[:, :1] if kind == "frame" else x)
        assert found.labels.tolist() == y.tolist()

    def test_what_is_no_data_set_of_series_is_refused(self, arrays, refusal):
        given = TensorDataset(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]))
        assert "series_column" in refusal(DataError, stored, given)
        assert "item 1 of dataset has shape (2, 6)" in refusal(DataError, stored, Two(), "s")


class TestExport:
    @pytest.fixture
    def folder(self, arrays, saved, trained):
        return trained(saved(**arrays))

    @pytest.mark.slow
    def test_the_program_gives_the_models_logits_for_stored_series(self, folder, tmp_path):
        node = load_trained(folder, 0)
        with torch.no_grad():
            logits = node.model(every(node.data.test))
        extra = {"hetfl.json": ""}
        program = torch.export.load(export(folder, 0, tmp_path / "model.pt2"), extra_files=extra).module()
        torch.testing.assert_close(program(node.data.test.stored()[0]), logits, rtol=1e-4, atol=1e-4)
        told = json.loads(extra["hetfl.json"])["inputs"]
        assert (told["kind"], told["shape"], told["dtype"]) == ("series", ["batch", CHANNEL_COUNT, LENGTH], "float32")

    def test_a_file_of_series_is_predicted_whichever_way_its_lists_lie(self, folder, arrays, saved):
        there = predict(folder, saved("there.npz", x=arrays["x"]), 0)
        number = np.arange(ROWS) + 100
        turned = predict(folder, saved("turned.npz", x=arrays["x"].swapaxes(1, 2), number=number), 0)
        assert (turned.classes, turned.scores) == (there.classes, there.scores)
        assert (there.names[:2], turned.ids[0][1][:2]) == (["1", "2"], ["100", "101"])

    def test_series_far_from_0_are_learnt_and_predicted_as_near_ones(self, arrays, saved, trained):
        """Moved by seconds since 1970, which float32 would round to 128 s."""
        found = []
        for offset in (0, 1_700_000_000):
            file = saved(f"{offset}.npz", x=arrays["x"].astype(np.float64) + offset, y=arrays["y"])
            found.append(predict(trained(file, str(offset)), file, 0).scores)
        np.testing.assert_allclose(found[1], found[0], atol=1e-3)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda x: x[:, :, :9], "row 1 of column 'x' of '{file}' holds 3 x 9"),
            (lambda x: x[:, :, :3], "row 1 of column 'x' of '{file}' holds 3 x 3"),
            (lambda x: np.where(x > -100, np.nan, x), "row 1 of column 'x'"),
        ],
        ids=["short", "square", "missing"],
    )
    def test_other_series_are_refused(self, change, said, folder, arrays, saved, refusal):
        file = saved("other.npz", x=change(arrays["x"]))
        assert said.format(file=file) in refusal(DataError, predict, folder, file, 0)

    @pytest.mark.parametrize(("value", "keys"), [(np.nan, {}), (-999, {"missing_values": "-999"})])
    def test_rows_that_are_no_series_are_left_out_and_named(self, value, keys, arrays, saved, trained):
        folder = trained(saved(**arrays), **keys)
        whole = predict(folder, saved("whole.npz", x=arrays["x"]), 0)
        other = spoilt({"x": arrays["x"], "number": np.arange(ROWS) + 100}, 4, value)
        found = predict(folder, saved("other.npz", **other), 0)
        assert ["row 5 of" in line and "missing" in line for line in found.unreadable] == [True]
        assert found.names[3:5] == ["4", "6"]
        assert found.ids == (("number", [str(row) for row in range(100, 160) if row != 104]),)
        np.testing.assert_allclose(found.scores, np.delete(whole.scores, 4), rtol=1e-5)


class TestHumanActivity:
    @pytest.fixture
    def archive(self, tmp_path):
        """Return a folder with three persons in the UCI archive's layout, two of them in its training split."""
        rng = np.random.default_rng(0)
        place = tmp_path / "uci" / "har" / "UCI HAR Dataset"
        for split, persons in (("train", [1, 3]), ("test", [2])):
            (place / split / "Inertial Signals").mkdir(parents=True)
            for number, channel in enumerate(CHANNELS):
                values = rng.normal(size=(12 * len(persons), 128)) + 10 * number
                np.savetxt(place / split / "Inertial Signals" / f"{channel}_{split}.txt", values, fmt="%16.7e")
            labels = "".join(f"{1 + row % 6}\n" for row in range(12 * len(persons)))
            subjects = "".join(f"{one}\n" * 12 for one in persons)
            lay(place, {f"{split}/y_{split}.txt": labels, f"{split}/subject_{split}.txt": subjects})
        names = ["WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING"]
        return lay(place, {"activity_labels.txt": "".join(f"{n} {name}\n" for n, name in enumerate(names, 1))})

    @pytest.mark.parametrize("way", ["name", "folder", "parent"])
    def test_the_archives_own_files_are_read(self, way, archive, tmp_path):
        place = {"name": "har", "folder": archive, "parent": archive.parent}[way]
        keys = {"data_dir": str(tmp_path)} if way == "name" else {}
        clients = load_clients(3, dataset=place, partition="natural:person", **keys)
        assert [client.name for client in clients] == ["1", "2", "3"]
        assert {client.spec for client in clients} == {HAR}
        found = clients[0].train.arrays
        np.testing.assert_allclose(found.inputs.mean(dim=(0, 2)), 10 * np.arange(9), atol=0.2)
        assert found.labels.tolist() == [*range(6)] * 6
        assert (found.class_names[0], found.train_rows) == ("walking", 24)

    def test_files_that_are_not_there_or_differ_are_refused(self, archive, refusal):
        assert "uci/har" in refusal(DataError, arrays_of, "har")
        lay(archive, {"train/y_train.txt": "1\n2\n"})
        assert "'activity' of shape (2, 1)" in refusal(DataError, arrays_of, archive)
        (gone := archive / "train" / "Inertial Signals" / "body_gyro_y_train.txt").unlink()
        assert str(gone) in refusal(DataError, arrays_of, archive)

    @pytest.mark.skipif("HETFL_DATA_DIR" not in os.environ, reason="HETFL_DATA_DIR names no folder with uci/har")
    def test_thirty_persons_have_their_own_windows_and_learn(self, tmp_path):
        keys = {"dataset": "har", "data_dir": os.environ["HETFL_DATA_DIR"], "partition": "natural:person"}
        data = load_client(num_partitions=30, **keys)
        assert (data.spec, len(data.train.arrays.labels)) == (HAR, 10_299)
        result = run("local", rounds=3, models="conv1d:small", out=tmp_path / "run", **keys)
        last = result.clients[result.clients["round"] == 3]
        assert len(last) == 30
        assert last["accuracy"].mean() > last["majority"].mean() + 0.1
