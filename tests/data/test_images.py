"""Images: resized, as bytes, in folders of the user's own, and as bad as they come."""

import io
import os
import struct
import zlib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from fixtures.data.columns import lacking, lay, noted
from fixtures.data.hub import colour, encoded, grey, table, write
from fixtures.data.loading import load_client
from PIL import Image

from hetfl_flwr.data import DataSpec, Reading, absolute, data_spec
from hetfl_flwr.data.bundled import read_digits, resized
from hetfl_flwr.errors import ConfigError, DataError
from hetfl_flwr.runs.settings import resolved

ALL = {"validation_fraction": 0.0, "test_fraction": 0.0}


def load(dataset="zoo/pets", **keys):
    return load_client(dataset=dataset, **(ALL | keys)).train.arrays


def noise(height, width, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(256, size=(height, width, 3), dtype=np.uint8))


def photos(root, *names):
    """Write an image a name, the i-th of grey i."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        grey(number).save(root / name)
    return root


TWICE = "benign/0.png", "benign/1.png", "malignant/0.png", "malignant/1.png"


class TestSize:
    def test_images_of_many_sizes_are_resized_as_pillow_does_it(self, tmp_path):
        images = [noise(40, 30), noise(16, 64, seed=1), grey(9, (5, 5))]
        root = write(tmp_path, train=table(images, [0, 1, 2]))
        arrays = load(data_dir=root, image_size=16)
        assert arrays.spec == data_spec("zoo/pets", Reading(str(root), image_size=16)) == DataSpec((3, 16, 16), 3)
        assert (arrays.inputs[2] == 9).all()
        for stored, image in zip(arrays.inputs, images[:2], strict=False):
            wanted = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR))
            assert np.array_equal(stored.permute(1, 2, 0).numpy(), wanted)

    def test_a_palette_is_coloured_before_it_is_resized(self, tmp_path):
        """Half red, half blue, one pixel of each; in between lie mixtures of both, and no green."""
        image = Image.fromarray(np.uint8([[[255, 0, 0], [0, 0, 255]]])).convert("P")
        root = write(tmp_path, train=table([image] * 2, [0, 1]))
        [first, _] = load(data_dir=root, image_size=4).inputs
        assert first[1].eq(0).all()
        assert (first[0].int() + first[2].int() - 255).abs().max() <= 1
        assert first[0, 0, 0] == 255 > first[0, 0, 1] > first[0, 0, 2] > 0

    def test_bundled_images_are_resized_as_well_and_tables_are_left_alone(self):
        """A mean of whole pixels: 8x8 of 0..16 becomes 4x4, whose mean brightness, of 255 now, is the same."""
        digits, small = read_digits(), load("digits", image_size=4)
        assert small.spec == data_spec("digits", Reading(image_size=4)) == DataSpec((1, 4, 4), 10)
        assert small.inputs.dtype == torch.uint8
        assert small.peak == 255
        means = [(arrays.inputs.double() / arrays.peak).mean(dim=(1, 2, 3)) for arrays in (digits, small)]
        assert (means[0] - means[1]).abs().max() < 0.05
        assert torch.equal(small.labels, digits.labels)
        assert load("breast-cancer", image_size=4).spec == DataSpec((30,), 2)

    def test_every_pixel_counts_where_an_image_shrinks(self):
        """Of eight columns the first is white. Column 0 of two lies at 2.0, and weighs those at 0.5, 1.5, ... 5.5 by
        1 - distance / 4: 5, 7, 7, 5, 3 and 1 eighths, of which 5 / 28 are white, of 255. Column 1 lies at 6.0: none.
        """
        images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
        images[..., 0] = 16
        small = resized(replace(read_digits(), inputs=images), 2)
        assert small.inputs.tolist() == [[[[46, 0], [46, 0]]]]

    def test_rotated_images_are_resized_before_they_are_turned(self, tmp_path):
        root = write(tmp_path, train=table([noise(20, 10, seed) for seed in range(4)], [0, 1, 0, 1]))
        turned = load("rotated-zoo/pets", num_partitions=4, data_dir=root, image_size=8)
        assert turned.spec.shape == (3, 8, 8)

    def test_the_catalogue_wants_a_size_where_images_have_many(self, refusal):
        assert "image-size" in refusal(DataError, data_spec, "office-home")
        assert data_spec("office-home", Reading(image_size=64)) == DataSpec((3, 64, 64), 65)
        assert data_spec("cifar10", Reading(image_size=64)) == DataSpec((3, 64, 64), 10)


class TestColumns:
    def test_bytes_are_decoded_where_a_column_is_named(self, tmp_path):
        lay(tmp_path / "zoo/pets", {"train.parquet": {"x": [encoded(grey(7)), encoded(grey(8))], "y": [0, 1]}})
        arrays = load(data_dir=tmp_path, image_column="x", label_column="y")
        assert arrays.inputs.flatten(1).tolist() == [[7] * 20, [8] * 20]

    def test_what_no_image_can_be_read_from_is_refused(self, tmp_path, refusal):
        rows = {"path": ["/none/a.png", "/none/b.png"], "label": [0, 1], "name": ["a", "b"]}
        lay(tmp_path / "zoo/pets", {"train.parquet": rows})
        said = refusal(DataError, load, data_dir=tmp_path, image_column="path", label_column="label")
        assert lacking(said, "row 1:", "/none/a.png") == []
        root = write(tmp_path / "both", train=table(name=["a"] * 6))
        said = refusal(ConfigError, load, data_dir=root, image_column="image", text_column="name")
        assert "image-column and text-column" in said
        assert load(data_dir=root, text_column="name", text_length=3).spec == DataSpec((3,), 3, vocabulary=20000)

    def test_rows_of_neutral_tweets_are_left_out_and_an_empty_split_is_refused(self, tmp_path, refusal):
        train = {"text": ["good", "bad"], "sentiment": [4, 0]}
        tests = {"text": ["so", "fine", "worse"], "sentiment": [2, 4, 0]}, {"text": ["so"], "sentiment": [2]}
        for number, test in enumerate(tests):
            lay(tmp_path / f"{number}/stanfordnlp/sentiment140", {"train.parquet": train, "test.parquet": test})
        assert load("sentiment140", data_dir=tmp_path / "0").labels.tolist() == [1, 0, 1, 0]
        assert "split 'test'" in refusal(DataError, load, "sentiment140", data_dir=tmp_path / "1")
        rows = lay(tmp_path / "rows", {"train.csv": "age,sick\n30,no\n40,yes\n", "test.csv": "age,sick\n"})
        assert f"'{rows}/test.csv'" in refusal(DataError, load, rows, label_column="sick")


class TestOwnFolder:
    @pytest.mark.parametrize(
        ("names", "train", "words"),
        [
            ("dog/a.png cat/b.PNG dog/c.png", 3, []),
            ("train/dog/a.png train/cat/b.png test/cat/c.png", 2, []),
            ("cat/train_0.png cat/1.png dog/test_2.png dog/3.png", 4, []),
            ("train/0.png train/1.png test/2.png test/3.png", 4, ["splits"]),
            ("north/cat/0.png bus/dog/1.png lab_test/dog/2.png", 3, ["are combined"]),
            ("p1/cat/0.png p1/dog/1.png p2/dog/2.png", 3, ["are combined"]),
            ("Train/cat/0.png train/dog/1.png TEST/cat/2.png", 2, []),
            ("cat/0.png dog/1.png | .hidden/cat/1.png cat/.3.png", 2, []),
            ("cat/p1/0.png dog/p2/1.png dog/p3/2.png", 3, ["CLASS/OWNER"]),
            *((f"train/cat/0.png train/dog/1.png | {name}/cat/2.png", 2, ["'validation'"]) for name in ("val", "dev")),
        ],
    )
    def test_each_folder_is_a_class_and_some_are_splits_or_owners(self, tmp_path, names, train, words):
        """What stands behind the bar is not read; where a folder may be something else, one note says so."""
        read, _, others = names.partition(" | ")
        arrays = load(photos(tmp_path / "mine", *read.split(), *others.split()))
        classes = [arrays.class_names[label] for label in arrays.labels]
        found = dict(zip(arrays.inputs[:, 0, 0, 0].tolist(), classes, strict=True))
        assert found == {number: Path(name).parent.name for number, name in enumerate(read.split())}
        assert (arrays.spec.shape, arrays.train_rows) == ((1, 4, 5), train)
        assert noted(arrays, *words) == bool(words)
        assert noted(arrays, "CLASS/OWNER") == ("CLASS/OWNER" in words)

    @pytest.mark.parametrize(
        ("names", "words"),
        [
            # classes of test images are those of training images
            ("train/cat/0.png train/dog/1.png test/unknown/2.png", ["'unknown'"]),
            ("train/cat/0.png train/dog/1.png test/0/2.png test/1/3.png", ["'0'"]),
            # an accent as a letter of its own, as macOS writes it
            ("caf\u00e9/a.png cafe\u0301/b.png dog/c.png", ["'caf\u00e9'"]),
            ("dog/a.png dog/b.png", ["mine'"]),
            # at another depth: the innermost folder would be the class, or all splits one
            ("train/b/0.png train/m/0.png test/b/0.png train/b/closeup/9.png", ["'train/b/closeup/9.png'"]),
            ("train/b/0.png train/m/0.png test/b/0.png preview.png", ["'preview.png'"]),
            ("train/b/closeup/9.png train/m/closeup/9.png", ["'train/b/closeup/9.png'"]),
            ("a/b/b/9.png a/b/m/9.png", ["'a/b/b/9.png'"]),
            # as of rows, train.csv beside holdout.csv: nobody can tell
            ("train/b/0.png train/m/0.png holdout/b/0.png holdout/m/0.png", ["train/b/0.png", "holdout/b/0.png"]),
        ],
    )
    def test_folders_that_nobody_can_tell_are_refused(self, tmp_path, refusal, names, words):
        line = refusal(DataError, load, photos(tmp_path / "mine", *names.split()))
        assert [word for word in words if word not in line] == []

    def test_files_of_metadata_say_more(self, tmp_path, refusal):
        """Also with backslashes, as on Windows, in another encoding, or in folders of splits without any of classes."""

        def ward(rows, **keys):
            root = photos(tmp_path / sha256(rows.encode()).hexdigest(), "a/0.png", "a/1.png", "b/2.png")
            lay(root, {"metadata.csv": ("file_name,ward\n" + rows).encode(keys.get("encoding", "utf-8"))})
            return load(root, **{"label_column": "ward"} | keys)

        assert ward("a/0.png,x\na/1.png,y\nb/2.png,x\n").labels.tolist() == [0, 1, 0]
        assert ward("a/0.png,u\na/1.png,v\nb/2.png,u\n", label_column="").class_names == ("a", "b")
        assert ward("a\\0.png,x\na\\1.png,y\nb\\2.png,x\n").labels.tolist() == [0, 1, 0]
        assert ward("a/0.png,ś\na/1.png,ź\nb/2.png,ś\n", encoding="cp1250").class_names == ("ś", "ź")
        assert noted(ward("a/0.png,x\na/1.png,y\n"), "1 of 3 images")
        assert noted(ward("a/0.png,x\na/1.png,y\nb/2.png,x\nb/9.png,y\n"), "1 of 4 rows")
        assert "a/0.png" in refusal(DataError, ward, "a/0.png,x\na/0.png,y\na/1.png,y\nb/2.png,x\n")
        hub = photos(tmp_path / "hub", "train/0.png", "train/1.png", "test/2.png")
        for split, rows in (("train", "0.png,x\n1.png,y\n"), ("test", "2.png,y\n")):
            lay(hub, {f"{split}/metadata.csv": "file_name,label\n" + rows})
        arrays = load(hub, label_column="label")
        assert (arrays.train_rows, arrays.labels.tolist()) == (2, [0, 1, 1])

    def test_images_beside_rows_that_do_not_describe_them_are_named(self, tmp_path):
        folder = lay(photos(tmp_path / "mine", *TWICE), {"labels.csv": "age,sick\n30,no\n40,yes\n50,no\n"})
        assert noted(load(folder, label_column="sick"), "benign/0.png", "metadata.csv")

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
    def test_transparent_images_lie_on_white(self, tmp_path, mode):
        """Black ink of which the ground is transparent: Pillow pastes it on white."""
        if mode == "P":
            image, keys = Image.fromarray(np.uint8([[0, 1], [1, 0]]), "P"), {"transparency": 0}
            image.putpalette([0, 0, 0, 0, 0, 0])
        else:
            image, keys = Image.new("RGBA", (2, 2), "black"), {}
            image.putalpha(Image.fromarray(np.uint8([[0, 255], [128, 0]])))
            image = image.convert(mode)
        content = encoded(image, **keys)
        arrays = load(lay(tmp_path / "mine", {"a/0.png": content, "b/0.png": content}))
        with Image.open(io.BytesIO(content)) as stored:
            (right := Image.new("RGB", (2, 2), "white")).paste(stored.convert("RGBA"), mask=stored.convert("RGBA"))
        assert np.array_equal(arrays.inputs[0].permute(1, 2, 0)[..., :1], np.asarray(right)[..., :1])
        assert arrays.inputs[0, 0, 0].tolist() == [255, 0]
        assert noted(arrays, "2 of 2", "white")

    def test_it_is_found_from_here_from_home_and_below_a_data_dir(self, tmp_path, monkeypatch, make_config):
        photos(tmp_path / "mine", "dog/a.png", "cat/b.png")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert absolute("./mine, rotated-~/mine") == f"{tmp_path}/mine,rotated-{tmp_path}/mine"
        assert resolved(make_config(dataset="digits, ./mine"), "local").dataset == f"digits,{tmp_path}/mine"
        assert load("./mine").inputs.data_ptr() == load("~/mine").inputs.data_ptr()
        assert len(load("rotated-./mine", num_partitions=4).labels) == 2
        photos(tmp_path / "synthetic-digits", "0/a.png", "1/b.png")
        assert load("synthetic-digits", data_dir=tmp_path).spec == DataSpec((1, 4, 5), 10)

    def test_a_folder_that_will_not_do_is_refused(self, tmp_path, refusal):
        none = tmp_path / "none"
        assert f"'{none}' is not a folder" in refusal(DataError, load, none)
        none.mkdir()
        assert f"'{none}' holds no data" in refusal(DataError, load, none)

    def test_images_that_cannot_be_learnt_from_are_counted(self, tmp_path, refusal):
        """The first picture of all is broken, another is no picture, one has another size, and one a short header."""
        large, broken = {"malignant/g.png": encoded(Image.new("L", (9, 8)))}, encoded(grey(0))[:40]
        short = broken[:8] + (9).to_bytes(4) + broken[12:]
        sound = lay(photos(tmp_path / "sound", *TWICE), large)
        assert lacking(refusal(DataError, load, sound), "g.png' is 8x9", "4x5", "image-size") == []
        others = {"benign/+.png": broken, "malignant/f.png": b"GIF", "malignant/h.png": short}
        root = lay(photos(tmp_path / "mine", *TWICE), large | others)
        assert lacking(refusal(DataError, load, root), "3 more", "benign/+.png'") == []

    @pytest.mark.parametrize(
        "stray", [os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path)]
    )
    def test_an_image_that_is_no_file_is_refused(self, tmp_path, refusal, stray):
        stray(photos(tmp_path / "mine", *TWICE) / "benign" / "7.png")
        assert f"'{tmp_path}/mine/benign/7.png'" in refusal(DataError, load, tmp_path / "mine")

    def test_an_image_whose_name_is_not_utf_8_is_named(self, tmp_path, refusal):
        folder = photos(tmp_path / "mine", *TWICE)
        os.rename(folder / "benign" / "0.png", os.fsencode(folder / "benign") + b"/\xff.png")
        assert f"'{folder}/benign/\\udcff.png'" in refusal(DataError, load, folder)

    def test_files_that_are_not_read_are_named(self, tmp_path):
        """Six, of which the first five by name; what describes the data is none of them."""
        others = ["a.heic", "b.zip", "c.txt", "d.7z", "e.xls", "f.docx", "README.txt", "LICENSE", "fetch.py", ".hidden"]
        files = {"benign/2.jfif": encoded(grey(3), "jpeg")} | dict.fromkeys(others, "none")
        lay(photos(tmp_path / "mine", *TWICE), files)
        arrays = load(tmp_path / "mine")
        [note] = arrays.notes
        assert "a.heic, b.zip, c.txt, d.7z, e.xls and 1 more" in note
        assert arrays.labels.bincount().tolist() == [3, 2]

    def test_a_link_to_a_folder_is_read_as_one_and_goes_round_once(self, tmp_path):
        folder, other = photos(tmp_path / "mine", *TWICE[:2]), photos(tmp_path / "elsewhere", *TWICE[2:])
        (folder / "malignant").symlink_to(other / "malignant")
        (folder / "benign" / "round").symlink_to(folder)
        assert load(folder).labels.tolist() == [0, 0, 1, 1]


def deep_png():
    """A pixel of 16 bits in each of three colours, as the PNG specification writes it; Pillow writes none."""
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(7))),
        (b"IEND", b""),
    )
    packed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def pages(form):
    return encoded(colour(1, 2, 3), form, save_all=True, append_images=[colour(200, 0, 0)])


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        *((f"9.{form}", pages(form), "2 pages") for form in ("tiff", "gif", "webp", "png")),
        ("9.png", deep_png(), "8 bits"),
        ("9.png", encoded(Image.fromarray(np.full((4, 5), 999, np.uint16))), "/benign/9.png'"),
        ("9.ppm", b"P6 1 1 65535\n" + bytes(6), "8 bits"),
        ("9.pgm", b"P5 1 1 65535\n" + bytes(2), "8 bits"),
    ],
)
def test_an_image_of_which_a_part_would_be_lost_is_refused(tmp_path, refusal, name, content, why):
    folder = lay(photos(tmp_path / "mine", *TWICE), {f"benign/{name}": content})
    assert why in refusal(DataError, load, folder)


def test_a_photo_with_its_preview_in_it_is_read(tmp_path):
    """As phones write them: Pillow counts two pages."""
    assert len(load(lay(tmp_path, {name.replace("png", "jpg"): pages("MPO") for name in TWICE})).labels) == 4


class TestHub:
    def test_what_only_a_script_could_read_is_taken_from_the_hub_s_copy(self, monkeypatch):
        asked = []

        def load_dataset(name, revision=None):
            asked.append((name, revision))
            if revision is None:
                raise RuntimeError("Dataset scripts are no longer supported, but found pets.py")
            return datasets.DatasetDict(train=table())

        monkeypatch.setattr("datasets.load.load_dataset", load_dataset)
        assert load("old/pets").spec == DataSpec((1, 4, 5), 3)
        assert asked == [("old/pets", None), ("old/pets", "refs/convert/parquet")]

    def test_what_is_on_no_hub_is_had_elsewhere(self, tmp_path, refusal):
        assert "<data-dir>/uci/ilpd" in refusal(DataError, load, "ilpd")
        assert refusal(DataError, load, "ilpd", data_dir=tmp_path).endswith("https://archive.ics.uci.edu/dataset/225")
