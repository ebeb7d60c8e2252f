"""Predictions for rows, images and texts, by the command and by the documentation's code alone."""

import calendar
import csv
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from shutil import copytree
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
import torch
from fixtures.tiers import exhaustive
from PIL import Image
from typer.testing import CliRunner

from hetfl_flwr import export
from hetfl_flwr.data import samples
from hetfl_flwr.errors import ConfigError, DataError, ModelError
from hetfl_flwr.seeding import generator
from simulations.cli.command import app
from simulations.inference.export import EXTRA
from simulations.inference.inputs import READERS
from simulations.inference.loading import load_client
from simulations.inference.predict import Predictions, load_model, predict

DOCS = Path(__file__).parents[3] / "docs" / "runs.md"

CITIES = ("Rome", "Oslo", "?", "Bonn")
ROWS = 60
HEADER = "patient,age,cost,seen,city,smoker,code,ward,floor,sick"
TABLE = f"{HEADER}\n" + "".join(
    f'P{row},{"none" if row == 5 else row % 50 + 20},"1.{row % 10}00,5",{row % 28 + 1}/{row % 12 + 1}/2024,'
    f"{CITIES[row % 4]},{row % 3 == 0},{'' if row == 7 else row % 3},W,1,{'yes' if row % 50 > 25 else 'no'}\n"
    for row in range(ROWS)
)
"""Ids, a word among numbers, decimal commas, dates, two kinds of categories and two constant columns."""

NAMES = [calendar.month_name[number] for number in range(1, 13)]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.fixture
def table(home, make_config, run_federation):
    """Give a table in the working directory, and the folder of a run on it."""
    (home / "data" / "train.csv").write_text(TABLE)
    (home / "patients.csv").write_text(TABLE)
    keys = {"dataset": str(home / "data"), "label_column": "sick", "categorical_columns": "code", "models": "mlp"}
    return run_federation(make_config(rounds=2, checkpoint_every=1, **keys))


@pytest.fixture
def images(home, make_config, run_federation):
    """Give photos of several sizes, and the folder of a run that resizes them."""
    draw = generator(0, "photos")
    for brightness, kind in enumerate(("dark", "light")):
        folder = home / "data" / kind
        folder.mkdir()
        for number in range(12):
            pixels = draw.integers(150 * brightness, 150 * brightness + 90, (9 + number % 3, 10, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    (home / "photo.png").write_bytes((home / "data" / "light" / "3.png").read_bytes())
    keys = {"dataset": str(home / "data"), "image_size": 8, "models": "mlp", "learning_rate": 0.05}
    return run_federation(make_config(rounds=4, checkpoint_every=1, **keys))


def texts_of(home, make_config, run_federation, vocabulary):
    lines = [f"{'Schöne, gute' if row % 2 else 'ÜBLE'} Reise_{row % 5}!,{row % 2}" for row in range(40)]
    rows = pd.DataFrame([line.rsplit(",", 1) for line in lines], columns=["text", "label"])
    rows.to_csv(home / "data" / "train.csv", index=False)
    (home / "texts.txt").write_text("\n".join([*rows.text[:6], "ganz andere Wörter", "", "Übles"]) + "\n", "utf-8")
    keys = {"text_column": "text", "label_column": "label", "models": "lstm1", "text_length": 4}
    keys |= {"dataset": str(home / "data"), "vocabulary": vocabulary}
    return run_federation(make_config(algorithm="fedavg", rounds=2, checkpoint_every=1, **keys))


def written(predictions):
    file = StringIO()
    predictions.write(file)
    return [line.split(",")[-2:] for line in file.getvalue().splitlines()[1:]]


def test_what_a_spreadsheet_would_run_is_a_text_and_all_else_is_as_it_was():
    formula = '=cmd|"/C calc"!A1'
    classes = (formula, "+sum(A1)", "@x", "-a", "\t=1", "-1", "+1.5e3", "-inf", "a=b", "", "-", "é")
    ids = (("=id", tuple(reversed(classes))), ("name", classes))
    file = StringIO()
    Predictions("file", classes, classes, [0.5] * len(classes), ids=ids).write(file)
    header, *rows = csv.reader(StringIO(file.getvalue()))
    safe = [f"'{formula}", "'+sum(A1)", "'@x", "'-a", "'\t=1", "-1", "+1.5e3", "-inf", "a=b", "", "-", "é"]
    assert header == ["file", "'=id", "name", "class", "score"]
    assert [list(column) for column in zip(*rows, strict=True)][:4] == [safe, safe[::-1], safe, safe]


def by_model(folder, client_id=0):
    """Return the model's class and score for each row of a client's data set."""
    node = load_client(folder, client_id)
    arrays = node.data.train.arrays
    order = torch.arange(len(arrays.labels))
    with torch.no_grad():
        inputs = type(node.data.train)(arrays, order).batch(order)[0]
        scores, numbers = node.model(inputs).softmax(1).max(1)
    return [arrays.class_names[number] for number in numbers], scores


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def recipe(number, end=None):
    """Run the documentation's code for a kind of data where this project cannot be imported; `end` may end it."""
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text().split("### Without this project")[1], re.M | re.S)
    first, *kinds, last = blocks
    assert len(kinds) == 3
    hidden = (
        "import sys\nfor name in ('hetfl_flwr', 'simulations', 'strategies', 'clients'): sys.modules[name] = None\n"
    )
    code = hidden + first + kinds[number] + (end or last)
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split(" ") for line in done.stdout.splitlines()]


class TestTables:
    def test_rows_get_the_classes_and_scores_of_the_model(self, table, home, capsys):
        classes, scores = by_model(table)
        found = predict(export(table, 0, home / "model.pt2"), home / "patients.csv")
        assert list(found.classes) == classes
        torch.testing.assert_close(torch.tensor(found.scores), scores)
        assert written(predict(table, home / "patients.csv", client=0)) == written(found)
        assert "columns that the model does not know are ignored: 'ward'\n" in capsys.readouterr().err

    def test_labels_are_neither_reported_nor_ids(self, home, make_config, run_federation, capsys):
        for label in ("sick", "ill"):
            rows = "".join(f"{row % 7},{row % 5},{row % 2}\n" for row in range(40))
            (home / f"{label}.csv").write_text(f"a,b,{label}\n{rows}")
        keys = {"dataset": f"{home}/sick.csv,{home}/ill.csv", "label_column": "sick,ill", "clients": 2}
        run = run_federation(make_config(rounds=1, checkpoint_every=1, models="mlp", **keys))
        (home / "new.csv").write_text("a,b, ill,sick,more\n1,2,x,no,\n3,4,y,no,\n")
        found = predict(export(run, 1, home / "model.pt2"), home / "new.csv")
        assert "columns that the model does not know are ignored: 'more'\n" in capsys.readouterr().err
        assert found.ids == ()

    @pytest.mark.parametrize("normalize", ["mean-image", "none"])
    def test_a_constant_may_be_absent_if_the_model_sees_0(self, home, make_config, run_federation, refusal, normalize):
        (home / "train.csv").write_text("a,year,sick\n" + "".join(f"{row % 7},2024,{row % 2}\n" for row in range(40)))
        (home / "new.csv").write_text("a\n1\n")
        keys = {"dataset": str(home / "train.csv"), "label_column": "sick", "clients": 2, "models": "mlp"}
        run = run_federation(make_config(rounds=1, checkpoint_every=1, normalize=normalize, **keys))
        if normalize == "none":
            assert "no column 'year'" in refusal(DataError, predict, run, home / "new.csv", client=0)
        else:
            assert len(predict(run, home / "new.csv", client=0).classes) == 1

    def test_columns_are_found_by_name_in_every_kind_of_file(self, table, home):
        expected = written(predict(table, home / "patients.csv", client=0))
        frame = pd.read_csv(home / "patients.csv", na_values="?").drop(columns=["sick", "patient", "floor"])
        frame = frame[sorted(frame)]
        frame.to_parquet(home / "p.parquet")
        frame.to_json(home / "p.json", orient="records")
        frame.to_json(home / "p.jsonl", orient="records", lines=True)
        frame.to_csv(home / "p.csv", index=False)
        for name in ("p.parquet", "p.json", "p.jsonl", "p.csv"):
            assert written(predict(table, home / name, client=0)) == expected, name

    @pytest.mark.slow
    def test_the_lines_of_the_documentation_give_the_same_and_stop_at_another_notation(self, table, home):
        export(table, 0, home / "model.pt2")
        assert recipe(0) == written(predict("model.pt2", "patients.csv"))
        frame = pd.read_csv(home / "patients.csv", dtype=str, keep_default_na=False)
        frame["cost"] = "17.99"
        frame.to_csv(home / "patients.csv", index=False)
        with pytest.raises(AssertionError, match=r"cost is not written as 1\.234,5"):
            recipe(0)

    @pytest.mark.slow
    def test_the_lines_of_the_documentation_read_dates_and_times_or_stop(self, home, make_config, run_federation):
        """Each column has dates in one notation, with and without times; the last is a marker of a missing day."""
        times = ("", " 08:30", " 8:30:15", " 12:30 AM", " 3:30:15 PM", "")
        stops = {"iso": "2024-01-05, 08:30", "sas": "1.Jan.24", "us": "1/2/2024 3:30 p.m."}
        days = [(f"{day:02}", day % 12 + 1, f"{NAMES[day % 12][:3]}", NAMES[day % 12]) for day in range(1, 25)]
        rows = [
            {
                "iso": f"2024-{m:02}-{d}" + ("", "T08:30", " 08:30:15.25", "T08:30Z", " 08:30+0200", "")[row % 6],
                "dots": f"{d}.{m:02}.2024{times[row % 6]}",
                "short": f"{d}.{m}.{68 + row % 2}{times[-row % 6]}",
                "us": (f"{m}/{d}/2024", f"{m}-{d}-2024")[row % 2] + times[row % 5],
                "named": (f"{int(d)}-{n}-2024", f"{d} {n} 2024", f"{d} {name} 2024")[row % 3] + times[row % 4],
                "sas": f"{d}{n.upper()}24",
                "first": (f"{n} {int(d)}, 2024", f"{name} {d}, 2024")[row % 2],
                "clock": ("00:30:00", "00:30", "1:15 pm", "23:59:59")[row % 4],
            }
            for row, (d, m, n, name) in enumerate(days)
        ]
        frame = pd.DataFrame(rows).assign(sick=[row % 2 for row in range(len(rows))])
        frame.loc[3] = ["1900-01-01 08:30", "01.01.1900", *frame.loc[3][2:]]
        frame.iloc[5, :8] = None
        frame.to_csv(home / "data" / "train.csv", index=False)
        frame.to_csv(home / "patients.csv", index=False)
        keys = {"dataset": str(home / "data"), "label_column": "sick", "models": "mlp", "missing_values": "1900-01-01"}
        export(run_federation(make_config(rounds=1, checkpoint_every=1, **keys)), 0, home / "model.pt2")
        expected = READERS["table"](load_model(Path("model.pt2")), Path("patients.csv")).inputs
        assert np.isnan(expected).sum(axis=0).tolist() == [2, 2, 1, 1, 1, 1, 1, 1]
        found = "".join(" ".join(row) for row in recipe(0, "print(json.dumps(inputs.tolist()))"))
        np.testing.assert_allclose(json.loads(found), expected, rtol=1e-12)
        for name, cell in stops.items():
            frame.assign(**{name: [cell, *frame[name][1:]]}).to_csv(home / "patients.csv", index=False)
            with pytest.raises(AssertionError, match=f"{name} has dates in other formats"):
                recipe(0)
        frame.assign(us=frame.iso).to_csv(home / "patients.csv", index=False)
        with pytest.raises(AssertionError, match="us is not written as month/day/year"):
            recipe(0)

    def test_what_training_did_not_know_is_counted_and_rows_have_their_numbers_in_the_file(self, table, home, capsys):
        rows = ['P1,old,"2,5",1/2/2024,Lima,True,1,W,1,', "P2,3,x,5,Rome,True,1,W,1,"]
        (home / "new.csv").write_text("\n".join(["", HEADER, "", "," * 9, rows[0], "  ", rows[1], ""]))
        assert predict(table, home / "new.csv", client=0).names == ["5", "7"]
        said = capsys.readouterr().err
        for name, row in {"age": 5, "cost": 7, "seen": 7, "city": 5}.items():
            assert re.search(rf"'{name}': 1 of 2 .*\(row {row}\)", said), name
        assert "1 of 3 rows" in said

    @pytest.mark.parametrize(
        ("usual", "other", "said"),
        [
            ('30,"1.200,5",1/2/2024', '30,"1,200.5",1/2/2024', "'cost': numbers, read in the notation 1,234.5"),
            ('30,"17,99",1/2/2024', "30,17.99,1/2/2024", "'cost': numbers, read in the notation 1234.5"),
            ('30,"0,125",1/2/2024', "30,0.125,1/2/2024", "'cost': numbers, read in the notation 1234.5"),
            ('30.5,"2,5",1/2/2024', '"30,5","2,5",1/2/2024', "'age': numbers, read in the notation 1.234,5"),
            ('30,"2,5",13/2/2024', '30,"2,5",2/13/2024', "'seen': dates, read in the notation month/day/year"),
        ],
    )
    def test_a_column_in_another_notation_is_read_and_said(self, table, home, capsys, usual, other, said):
        for name, cells in (("usual.csv", usual), ("other.csv", other)):
            (home / name).write_text(f"{HEADER}\nP1,{cells},Rome,True,1,W,1,\n")
        expected, found = (predict(table, home / name, client=0).scores for name in ("usual.csv", "other.csv"))
        assert np.array_equal(expected, found)
        assert said in capsys.readouterr().err

    def test_ids_are_texts_or_whole_numbers_and_empty_rows_hide_none(self, table, home, capsys):
        """Columns are in reverse. Unique prices are not ids, nor are wards that are not unique, nor labels."""
        frame = pd.read_csv(home / "patients.csv", dtype=str)[HEADER.split(",")[::-1]]
        frame.insert(0, "price", [f"{row}.5" for row in range(len(frame))])
        frame["visit"] = range(len(frame))
        frame.to_parquet(home / "p.parquet")
        assert [name for name, _ in predict(table, home / "p.parquet", client=0).ids] == ["price", "patient", "visit"]
        frame = frame.astype({"price": float})
        frame.to_parquet(home / "p.parquet")
        found = predict(table, home / "p.parquet", client=0)
        assert [name for name, _ in found.ids] == ["patient", "visit"]
        frame.loc[len(frame)] = None
        frame.iloc[[*range(3), len(frame) - 1, *range(3, len(frame) - 1)]].to_csv(home / "p.csv", index=False)
        again = predict(table, home / "p.csv", client=0)
        assert (again.scores, again.names[2:4]) == (found.scores, ["4", "6"])
        assert "'visit'" not in capsys.readouterr().err
        frame[:2].assign(sick=["yes", "no"]).drop(columns=["patient", "visit"]).to_csv(home / "p.csv", index=False)
        assert "sick" not in dict(predict(table, home / "p.csv", client=0).ids)

    def test_a_column_of_which_nothing_can_be_read_is_refused_and_an_empty_one_is_unknown(self, table, home, refusal):
        frame = pd.read_csv(home / "patients.csv", dtype=str)
        frame.assign(age="12 y").to_csv(home / "p.csv", index=False)
        assert "'age'" in refusal(DataError, predict, table, home / "p.csv", client=0)
        for empty in (None, "unknown", "NULL"):
            frame.assign(age=empty).to_csv(home / "p.csv", index=False)
            assert len(predict(table, home / "p.csv", client=0).classes) == len(frame)

    def test_the_command_writes_a_file(self, table, home):
        done = invoke("predict", table, "patients.csv", "--client", 1, "--out", "out.csv")
        assert (done.exit_code, done.stdout) == (0, "predictions: out.csv\n")
        rows = pd.read_csv("out.csv")
        assert list(rows) == ["row", "patient", "class", "score"]
        assert rows.row.tolist() == list(range(2, ROWS + 2))  # the header is row 1
        assert rows.patient.tolist() == [f"P{row}" for row in range(ROWS)]
        assert rows["class"].tolist() == by_model(table, 1)[0]
        assert invoke("predict", table, "patients.csv", "--client", 1).stdout == Path("out.csv").read_text()

    def test_a_file_is_read_by_the_keys_of_training(self, home, make_config, run_federation):
        """Columns 1, 2 and 3 have no names, and the encoding cannot be guessed."""
        text = "".join(f"{'śź'[row % 2]},{row % 7},{'uv'[row % 2]}\n" for row in range(ROWS))
        (home / "data" / "train.csv").write_text(text, "cp1250")
        keys = {"header_row": -1, "encoding": "cp1250", "label_column": "3", "categorical_columns": "1"}
        own = {"dataset": str(home / "data"), "models": "mlp", "algorithm": "local", **keys}
        folder = run_federation(make_config(rounds=12, checkpoint_every=1, **own))
        export(folder, 0, home / "model.pt2")
        for model, client in ((folder, 0), ("model.pt2", None)):
            found = predict(model, home / "data" / "train.csv", client)
            assert (found.names[0], [*found.classes]) == ("1", [*"uv"] * (ROWS // 2))


class TestImages:
    def test_images_get_the_classes_of_the_model(self, images, home):
        """Images that the run has resized, in the order of classes and then of names."""
        found = predict(export(images, 0, home / "model.pt2"), home / "data")
        classes, scores = by_model(images)
        paths = load_client(images, 0).data.train.arrays
        assert len(paths.labels) == len(found.names) == 24
        told = zip(found.classes, np.round(found.scores, 4), strict=True)
        assert sorted(told) == sorted(zip(classes, np.round(scores.numpy().astype(float), 4), strict=True))
        assert [name.split("/")[-2] for name in found.names] == list(found.classes)

    def test_a_photo_is_turned_upright_as_in_training(self, images, home):
        exif = Image.Exif()
        exif[0x0112] = 6  # of a camera that was held on its side
        with Image.open(home / "photo.png") as photo:
            photo.transpose(Image.Transpose.ROTATE_90).save(home / "turned.png", exif=exif)
        expected = predict(images, home / "photo.png", client=0)
        assert predict(images, home / "turned.png", client=0).scores == expected.scores

    @pytest.mark.exhaustive
    @pytest.mark.slow
    def test_the_lines_of_the_documentation_give_the_same(self, images, home):
        export(images, 0, home / "model.pt2")
        assert recipe(1) == written(predict("model.pt2", "photo.png"))

    @pytest.mark.exhaustive
    def test_one_that_cannot_be_read_is_named_and_the_others_are_predicted(self, images, home):
        copytree(home / "data", home / "new")
        (home / "new" / "dark" / "4.png").write_text("no image")
        command = [sys.executable, "-m", "hetfl_flwr", "predict", str(images), "new", "--client", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 2
        assert len(done.stdout.splitlines()) == 24
        assert done.stderr.count("\n") == 1
        assert "new/dark/4.png' cannot be decoded: " in done.stderr

    def test_sizes_are_those_of_training_where_nothing_was_resized(self, make_config, run_federation, home, refusal):
        folder = run_federation(make_config(rounds=1, checkpoint_every=1, models="mlp"))
        raw = load_client(folder, 0).data.train.arrays.inputs[:2, 0].numpy()
        for number, pixels in enumerate(raw):
            Image.fromarray(np.rint(pixels * (255 / 16)).astype(np.uint8)).save(home / f"{number}.png")
        assert list(predict(folder, home / "1.png", 0).classes) == by_model(folder)[0][1:2]
        Image.new("RGB", (8, 8)).save(home / "red.png")
        assert "gray" in refusal(DataError, predict, folder, home / "red.png", 0)
        Image.new("L", (9, 8)).save(home / "large.png")
        assert "8x9" in refusal(DataError, predict, folder, home / "large.png", 0)


@pytest.mark.parametrize("vocabulary", [exhaustive("hashed:50"), exhaustive("shared:8")])
def test_texts_and_the_lines_of_the_documentation(vocabulary, home, make_config, run_federation):
    folder = texts_of(home, make_config, run_federation, vocabulary)
    export(folder, 0, home / "model.pt2")
    classes, scores = by_model(folder)
    found = predict("model.pt2", home / "data" / "train.csv")
    assert list(found.classes) == classes
    torch.testing.assert_close(torch.tensor(found.scores), scores)
    lines = written(predict("model.pt2", "texts.txt"))
    assert len(lines) == 9
    assert recipe(2) == lines


def test_a_text_ends_with_its_line_alone(home, make_config, run_federation, refusal):
    """A form feed or a line separator of Unicode is a part of a text."""
    folder = texts_of(home, make_config, run_federation, "hashed:50")
    (home / "two.txt").write_text("good\x0cfilm\r\nbad\u2028film", newline="")
    assert list(predict(folder, "two.txt", 0).names) == ["1", "2"]
    (home / "none.txt").touch()
    assert "'none.txt' holds no rows" in refusal(DataError, predict, folder, "none.txt", 0)


def test_rows_without_a_text_are_left_out_and_ids_added(home, make_config, run_federation, refusal, capsys):
    folder = texts_of(home, make_config, run_federation, "hashed:50")
    (home / "new.csv").write_text("id,text,label\na1,gute Reise,1\nb2,,0\n,,\nc3,üble Reise,1\n")
    found = predict(folder, "new.csv", 0)
    assert (found.names, found.ids) == (["2", "5"], (("id", ["a1", "c3"]),))
    assert "'new.csv': 2 of 4 rows have no text: left out" in capsys.readouterr().err
    (home / "new.txt").write_text("gute Reise\nüble Reise\n")
    assert found.scores == predict(folder, "new.txt", 0).scores
    (home / "none.csv").write_text("id,text\na1,\n")
    assert "'none.csv': all rows have no text" in refusal(DataError, predict, folder, "none.csv", 0)


class Touching:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


class TestRefused:
    @pytest.mark.parametrize(
        ("content", "named"),
        [
            (f'{HEADER}\nP1,"1,200","2,5",1/2/2024,Rome,True,1,W,1,\n', ["'age'", "ambiguous", "1234.5"]),
            (f'{HEADER}\nP1,1e999,"2,5",1/2/2024,Rome,True,1,W,1,\n', ["row 2", "infinite age"]),
            ("age,kost\n3,2\n", ["'cost', 'seen', 'city', 'smoker', 'code'", "'age', 'kost'"]),
            ("", ["new.csv"]),
            (" \n\n", ["new.csv"]),
            (f'{HEADER}\n\nP1,"3\nP2,4\n', ["row 3"]),
            (f"{HEADER}\n", ["no row"]),
        ],
    )
    def test_rows_that_the_model_cannot_read(self, table, home, refusal, content, named):
        """An image is not a table, nor a folder a file."""
        for name in ("missing.csv", "photo.png", "data"):
            assert name in refusal(DataError, predict, table, home / name, 0)
        (home / "new.csv").write_text(content)
        line = refusal(DataError, predict, table, "new.csv", client=0)
        assert [word for word in named if word not in line] == []

    def test_what_an_image_model_cannot_be_given(self, images, home, refusal):
        """Pixels of 16 bits would be cut to 8."""
        (home / "patients.csv").write_text(TABLE)
        (home / "none").mkdir()
        Image.fromarray(np.full((8, 8), 999, np.uint16)).save(home / "deep.png")
        for name, said in (("patients.csv", "takes images"), ("none", "no images"), ("deep.png", "I;16")):
            assert said in refusal(DataError, predict, images, home / name, 0)

    def test_a_model_that_is_none(self, table, home, refusal):
        told = {EXTRA: ""}
        path = export(table, 0, home / "model.pt2")
        program = torch.export.load(path, extra_files=told)
        (home / "broken.pt2").write_bytes(path.read_bytes()[:4000])
        (home / "model.onnx").touch()
        whole = json.loads(told[EXTRA])
        descriptions = [{key: value for key, value in whole.items() if key != "format"}]
        descriptions += [whole | {"inputs": whole["inputs"] | {"columns": columns}} for columns in (None, [], {})]
        descriptions += [whole | {"inputs": {key: value for key, value in whole["inputs"].items() if key != "columns"}}]
        for number, description in enumerate(descriptions):
            torch.export.save(program, home / f"{number}.pt2", extra_files={EXTRA: json.dumps(description)})
            refusal(ModelError, predict, home / f"{number}.pt2", home / "patients.csv")
        for name in ("broken.pt2", "missing.pt2", "model.onnx"):
            assert name in refusal(ModelError, predict, home / name, home / "patients.csv")
        assert "--client" in refusal(ConfigError, predict, table, home / "patients.csv")
        assert "--client" in refusal(ConfigError, predict, path, home / "patients.csv", 0)

    def test_a_program_of_others_is_refused_before_it_is_run(self, home, refusal, monkeypatch):
        program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
        described = '{"inputs": {"kind": %s}, "outputs": {"classes": []}}'
        texts = ("", "no json", "[]", described % '"sound"', described % '["table"]')
        for number, extra in enumerate([*({EXTRA: text} for text in texts), {}]):
            torch.export.save(program, home / f"{number}.pt2", extra_files=extra)
        monkeypatch.delattr(torch.export, "load")
        for number in range(len(texts) + 1):
            refusal(ModelError, predict, home / f"{number}.pt2", home / "patients.csv")

    @pytest.mark.parametrize(
        ("member", "written", "evil"),
        [
            ("data/sample_inputs/model.pt", "", "PICKLE"),
            ("data/aotinductor/model/model.so", "", ""),
            ("data/constants/opaque_obj_0", "", ""),
            ("models/model.json", r'"guards_code": \[\]', '"guards_code": ["CODE == 0"]'),
            ("models/model.json", r'"expr_str": "[^"]*"', '"expr_str": "CODE"'),
            ("models/model.json", r'"target": "torch[^"]*"', '"target": "torch.os.system"'),
            (
                "models/model.json",
                r'"range_constraints": \{"',
                '"range_constraints": {"CODE": {"min_val": 0, "max_val": null}, "',
            ),
        ],
    )
    def test_a_file_that_holds_code_or_is_written_to_run_it_does_not(self, table, home, refusal, member, written, evil):
        """A pickle, a library or an object among a program's files, or an expression in the program."""
        path, buffer = export(table, 0, home / "model.pt2"), io.BytesIO()
        torch.save(Touching(str(home / "ran")), buffer)
        code = f"__import__('os').system('touch {home / 'ran'}')"
        with ZipFile(path) as old, ZipFile(home / "evil.pt2", "w") as new:
            changed = f"{old.namelist()[0].partition('/')[0]}/{member}"
            for name in old.namelist():
                if name != changed:
                    new.writestr(name, old.read(name))
            if written:
                text, count = re.subn(written, lambda _: evil.replace("CODE", code), old.read(changed).decode())
                assert count
                new.writestr(changed, text)
            else:
                new.writestr(changed, buffer.getvalue() if evil else b"")
        refusal(ModelError, predict, home / "evil.pt2", home / "patients.csv")
        assert not (home / "ran").exists()
        assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ

    def test_a_file_with_flipped_bits_in_its_weights(self, table, home, refusal):
        """torch reads them, and predicts something else."""
        path = export(table, 0, home / "model.pt2")
        with ZipFile(path) as archive:
            member = max(
                (one for one in archive.infolist() if "weights/" in one.filename), key=lambda one: one.file_size
            )
        content = bytearray(path.read_bytes())
        place = content.index(ZipFile(path).read(member)[:64], member.header_offset)
        content[place + 3] ^= 0x7F
        path.write_bytes(content)
        assert "checksum" in refusal(ModelError, predict, path, home / "patients.csv")


def test_a_long_table_is_read_in_the_notation_of_training(home, make_config, run_federation):
    """A series of whole thousands alone does not show that its file has decimal commas."""
    rows = [
        f"p{one};{time}.000;{one % 3 + 1}.888{',5' * (time == 2)};{one % 2}" for one in range(20) for time in (1, 2)
    ]
    Path("long.csv").write_text("\n".join(["who;time;value;ill", *rows]))
    own = {"dataset": str(home / "long.csv"), "label_column": "ill", "pivot": "who,time,value", "models": "mlp"}
    folder = run_federation(make_config(**own, rounds=1, state_dir=str(home / "state")))
    Path("new.csv").write_text("who;time;value\nx;1.000;1.888\nx;2.000;2.888\n")
    export(folder, 0, "model.pt2")
    for model in (load_model(folder, 0), load_model(home / "state", 0), load_model(Path("model.pt2"))):
        assert READERS["series"](model, Path("new.csv")).inputs.tolist() == [[[1888, 2888]]]
    Path("new.csv").write_text("who;time;value\nx;1000;1888.25\nx;2000;2888.25\n")
    assert READERS["series"](model, Path("new.csv")).inputs.tolist() == [[[1888.25, 2888.25]]]


def test_a_model_trained_on_another_device_reads_what_files_hold(home, make_config, run_federation, monkeypatch):
    """Seconds since 1970 need float64, which a device may lack: it stores them shifted."""
    placed = samples._placed

    def as_elsewhere(arrays, device):
        shifted = samples._shifted(arrays.inputs, arrays.origin)
        here = {name: getattr(arrays, name) for name in ("labels", "peak", "centre")}
        return replace(placed(arrays, torch.device("meta")), inputs=shifted, **here)

    monkeypatch.setattr(samples, "_placed", as_elsewhere)
    rows = (f"{1_700_000_000 + 300 * (row % 2) + row % 7},{row % 11},{'ab'[row % 2]}" for row in range(60))
    Path("stamps.csv").write_text("\n".join(["stamp,x,y", *rows]))
    own = {"dataset": str(home / "stamps.csv"), "label_column": "y", "numeric_columns": "stamp", "models": "mlp"}
    folder = run_federation(make_config(**own, rounds=1, state_dir=str(home / "state")))
    classes, scores = by_model(folder)
    export(folder, 0, "model.pt2")
    for place, client in (folder, 0), (home / "state", 0), ("model.pt2", None):
        found = predict(place, "stamps.csv", client)
        assert found.classes == classes
        np.testing.assert_allclose(found.scores, scores, rtol=1e-5)
