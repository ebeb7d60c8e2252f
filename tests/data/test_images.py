"""Images: resized, as bytes, in folders of the user's own, and as bad as they come."""

import io
import os
import struct
import zlib
from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
from fixtures.data.hub import colour, grey, table, write
from fixtures.data.loading import load_client
from PIL import Image

from hetfl_flwr.data import DataSpec, Reading, absolute, data_spec
from hetfl_flwr.data.bundled import read_digits, resized
from hetfl_flwr.errors import ConfigError, DataError

ALL = {"partition_id": 0, "num_partitions": 1, "seed": 0, "validation_fraction": 0.0, "test_fraction": 0.0}


def load(dataset="zoo/pets", **keys):
    return load_client(dataset=str(dataset), **(ALL | keys)).train.arrays


def noise(height, width, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(256, size=(height, width, 3), dtype=np.uint8))


def png(image):
    stream = io.BytesIO()
    image.save(stream, "png")
    return stream.getvalue()


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
        turned = load_client(**ALL | {"num_partitions": 4}, dataset="rotated-zoo/pets", data_dir=root, image_size=8)
        assert turned.spec.shape == (3, 8, 8)

    def test_the_catalogue_wants_a_size_where_images_have_many(self, refusal):
        assert "image-size" in refusal(DataError, data_spec, "office-home")
        assert data_spec("office-home", Reading(image_size=64)) == DataSpec((3, 64, 64), 65)
        assert data_spec("cifar10", Reading(image_size=64)) == DataSpec((3, 64, 64), 10)


class TestColumns:
    def test_bytes_are_decoded_where_a_column_is_named(self, tmp_path):
        rows = {"picture": [png(grey(7)), png(grey(8))], "label": [0, 1]}
        root = write(tmp_path, train=datasets.Dataset.from_dict(rows))
        arrays = load(data_dir=root, image_column="picture", label_column="label")
        assert arrays.inputs.flatten(1).tolist() == [[7] * 20, [8] * 20]

    def test_what_no_image_can_be_read_from_is_refused(self, tmp_path, refusal):
        rows = {"path": ["/none/a.png", "/none/b.png"], "label": [0, 1], "name": ["a", "b"]}
        root = write(tmp_path, train=datasets.Dataset.from_dict(rows))
        said = refusal(DataError, load, data_dir=root, image_column="path", label_column="label")
        assert ("row 1:" in said, "/none/a.png" in said) == (True, True)
        root = write(tmp_path / "both", train=table(name=["a"] * 6))
        said = refusal(ConfigError, load, data_dir=root, image_column="image", text_column="name")
        assert "image-column and text-column" in said

    def test_a_text_column_makes_texts_of_a_data_set_with_images(self, tmp_path):
        root = write(tmp_path, train=table(name=["a cat", "b", "c"] * 2))
        assert load(data_dir=root, text_column="name", text_length=3).spec == DataSpec((3,), 3, vocabulary=20000)

    def test_rows_of_neutral_tweets_are_left_out(self, tmp_path):
        train = datasets.Dataset.from_dict({"text": ["good", "bad"], "sentiment": [4, 0]})
        test = datasets.Dataset.from_dict({"text": ["so", "fine", "worse"], "sentiment": [2, 4, 0]})
        root = write(tmp_path, "stanfordnlp/sentiment140", train=train, test=test)
        assert load("sentiment140", data_dir=root).labels.tolist() == [1, 0, 1, 0]

    def test_an_empty_split_is_refused(self, tmp_path, refusal):
        train = datasets.Dataset.from_dict({"text": ["good", "bad"], "sentiment": [4, 0]})
        neutral = datasets.Dataset.from_dict({"text": ["so"], "sentiment": [2]})
        root = write(tmp_path, "stanfordnlp/sentiment140", train=train, test=neutral)
        (rows := tmp_path / "rows").mkdir()
        (rows / "train.csv").write_text("age,sick\n30,no\n40,yes\n")
        (rows / "test.csv").write_text("age,sick\n")
        assert "split 'test'" in refusal(DataError, load, "sentiment140", data_dir=root)
        assert f"'{rows}/test.csv'" in refusal(DataError, load, rows, label_column="sick")


class TestOwnFolder:
    @staticmethod
    def photos(root, *names):
        """One image a name, the i-th of grey i."""
        for number, name in enumerate(names):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            grey(number).save(root / name)
        return root

    def test_each_folder_is_a_class(self, tmp_path):
        root = self.photos(tmp_path / "mine", "dog/a.png", "cat/b.PNG", "dog/c.png")
        (root / "dog" / "notes.txt").write_text("no image")
        arrays = load(root)
        assert (arrays.spec, arrays.train_rows) == (DataSpec((1, 4, 5), 2), 3)
        assert dict(zip(arrays.inputs[:, 0, 0, 0].tolist(), arrays.labels.tolist(), strict=True)) == {0: 1, 1: 0, 2: 1}

    def test_train_and_test_may_lie_in_folders_of_their_own(self, tmp_path):
        root = self.photos(tmp_path / "mine", "train/dog/a.png", "train/cat/b.png", "test/cat/c.png")
        data = load_client(**ALL, dataset=str(root), test="global", normalize="none")
        assert (len(data.train), data.test.labels.tolist(), data.test.stored()[0].max().item()) == (2, [0], 2)

    @pytest.mark.parametrize(
        ("names", "train", "classes"),
        [
            (["cat/train_0.png", "cat/1.png", "dog/test_2.png", "dog/3.png"], 4, ("cat", "dog")),
            (["train/0.png", "train/1.png", "test/2.png", "test/3.png"], 4, ("test", "train")),
            (["north/cat/0.png", "bus/dog/1.png", "lab_test/dog/2.png"], 3, ("cat", "dog")),
            (["Train/cat/0.png", "train/dog/1.png", "TEST/cat/2.png"], 2, ("cat", "dog")),
            (["cat/0.png", ".hidden/cat/1.png", "dog/2.png", "cat/.3.png"], 2, ("cat", "dog")),
        ],
        ids=["names", "classes", "some", "capitals", "hidden"],
    )
    def test_all_images_are_read_whatever_they_are_called(self, tmp_path, names, train, classes):
        arrays = load(self.photos(tmp_path / "mine", *names))
        shown = [name for name in names if "/." not in f"/{name}"]
        assert (len(arrays.labels), arrays.train_rows, arrays.class_names) == (len(shown), train, classes)

    @pytest.mark.parametrize(
        ("names", "word"),
        [
            (["train/cat/0.png", "train/dog/1.png", "test/unknown/2.png"], "'unknown'"),
            (["train/cat/0.png", "train/dog/1.png", "test/0/2.png", "test/1/3.png"], "'0'"),
        ],
    )
    def test_classes_of_test_images_are_those_of_training_images(self, tmp_path, refusal, names, word):
        assert word in refusal(DataError, load, self.photos(tmp_path / "mine", *names))

    @pytest.mark.parametrize(
        ("names", "word"),
        [
            (["cat/p1/0.png", "dog/p2/1.png", "dog/p3/2.png"], "CLASS/OWNER"),
            (["p1/cat/0.png", "p1/dog/1.png", "p2/dog/2.png"], ""),
            (["train/0.png", "test/1.png"], "splits"),
        ],
    )
    def test_folders_that_may_be_something_else_are_doubted(self, tmp_path, names, word):
        notes = load(self.photos(tmp_path / "mine", *names)).notes
        assert any(word in note for note in notes if "put together" not in note) == bool(word)

    def test_metadata_of_windows_name_files_with_backslashes(self, tmp_path):
        root = self.photos(tmp_path / "mine", "img/0.png", "img/1.png")
        (root / "metadata.csv").write_text("file_name,label\nimg\\0.png,u\nimg\\1.png,v\n")
        assert load(root, label_column="label").class_names == ("u", "v")

    def test_folders_of_classes_that_look_alike_are_refused(self, tmp_path, refusal):
        """An accent as a letter of its own, as macOS writes it."""
        root = self.photos(tmp_path / "mine", "caf\u00e9/a.png", "cafe\u0301/b.png", "dog/c.png")
        assert "'caf\u00e9'" in refusal(DataError, load, root)

    def test_a_file_of_metadata_says_more(self, tmp_path):
        root = self.photos(tmp_path / "mine", "a/0.png", "a/1.png", "b/2.png")
        (root / "metadata.csv").write_text("file_name,ward\na/0.png,x\na/1.png,y\nb/2.png,x\n")
        assert load(root).class_names == ("a", "b")
        assert load(root, label_column="ward").labels.tolist() == [0, 1, 0]
        (root / "metadata.csv").write_text("a/0.png,ś\na/1.png,ź\nb/2.png,ś\n".join(["file_name,ward\n", ""]), "cp1250")
        assert load(root, label_column="ward", encoding="cp1250").class_names == ("ś", "ź")

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
    def test_transparent_images_lie_on_white(self, tmp_path, mode):
        """Black ink of which the ground is transparent: Pillow pastes it on white."""
        alpha = Image.fromarray(np.uint8([[0, 255], [128, 0]]))
        for name in ("a", "b"):
            (tmp_path / "mine" / name).mkdir(parents=True)
            image = Image.new("RGBA", (2, 2), "black")
            image.putalpha(alpha)
            if mode == "P":
                image = Image.fromarray(np.uint8([[0, 1], [1, 0]]), "P")
                image.putpalette([0, 0, 0, 0, 0, 0])
                image.save(tmp_path / "mine" / name / "0.png", transparency=0)
            else:
                image.convert(mode).save(tmp_path / "mine" / name / "0.png")
        right = Image.new("RGB", (2, 2), "white")
        with Image.open(tmp_path / "mine" / "a" / "0.png") as stored:
            right.paste(stored.convert("RGBA"), mask=stored.convert("RGBA"))
        arrays = load(tmp_path / "mine")
        assert np.array_equal(arrays.inputs[0].permute(1, 2, 0)[..., :1], np.asarray(right)[..., :1])
        assert arrays.inputs[0, 0, 0].tolist() == [255, 0]
        assert ["2 of 2" in note and "white" in note for note in arrays.notes] == [True]

    def test_images_lie_below_a_data_dir_just_as_well(self, tmp_path):
        self.photos(tmp_path / "synthetic-digits", "0/a.png", "1/b.png")
        assert load("synthetic-digits", data_dir=tmp_path).spec == DataSpec((1, 4, 5), 10)

    def test_files_of_rows_are_read_whatever_they_hold(self, tmp_path):
        write(tmp_path, train=table())
        assert load(tmp_path / "zoo/pets").spec == DataSpec((1, 4, 5), 3)
        table().save_to_disk(tmp_path / "saved")
        assert load(tmp_path / "saved").spec == DataSpec((1, 4, 5), 3)
        (tmp_path / "people").mkdir()
        (tmp_path / "people" / "train.csv").write_text("age,sick\n30,no\n40,yes\n")
        assert load(tmp_path / "people", label_column="sick").spec == DataSpec((1,), 2)

    def test_it_is_found_from_the_working_folder_and_from_home(self, tmp_path, monkeypatch):
        self.photos(tmp_path / "mine", "dog/a.png", "cat/b.png")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert absolute("./mine, rotated-~/mine") == f"{tmp_path}/mine,rotated-{tmp_path}/mine"
        assert load("./mine").inputs.data_ptr() == load("~/mine").inputs.data_ptr()
        assert len(load("rotated-./mine", num_partitions=4).labels) == 2

    def test_a_folder_that_will_not_do_is_refused(self, tmp_path, refusal):
        none = tmp_path / "none"
        assert f"'{none}' is not a folder" in refusal(DataError, load, none)
        none.mkdir()
        assert f"'{none}' holds no data" in refusal(DataError, load, none)
        one = self.photos(tmp_path / "one", "dog/a.png", "dog/b.png")
        assert f"'{one}'" in refusal(DataError, load, one)
        root = self.photos(tmp_path / "mine", "dog/a.png", "cat/b.png")
        for content in (png(grey(0))[:40], png(Image.fromarray(np.full((4, 5), 999, np.uint16)))):
            (root / "cat" / "a.png").write_bytes(content)
            assert f"'{root}/cat/a.png'" in refusal(DataError, load, root)

    def test_images_that_cannot_be_learnt_from_are_counted(self, tmp_path, refusal):
        """The first picture of all is broken, another is no picture, and one has another size."""
        root = self.photos(tmp_path / "mine", "cat/b.png", "cat/d.png", "dog/c.png", "dog/e.png")
        (root / "cat" / "a.png").write_bytes(png(grey(0))[:40])
        (root / "dog" / "f.png").write_bytes(b"GIF")
        Image.new("L", (9, 8)).save(root / "dog" / "g.png")
        said = refusal(DataError, load, root)
        assert [word for word in ("cat/a.png'", "2 more") if word not in said] == []
        root = self.photos(tmp_path / "sound", "cat/b.png", "cat/d.png", "dog/c.png", "dog/e.png")
        Image.new("L", (9, 8)).save(root / "dog" / "g.png")
        said = refusal(DataError, load, root)
        assert [word for word in ("g.png' is 8x9", "4x5", "image-size") if word not in said] == []

    def test_a_run_keeps_its_absolute_path(self, tmp_path, monkeypatch, make_config):
        from hetfl_flwr.runs.settings import resolved

        monkeypatch.chdir(tmp_path)
        found = resolved(make_config(dataset="digits, ./mine"), "local")
        assert found.dataset == f"digits,{tmp_path}/mine"


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


def twice(folder, *classes):
    """Write two images of each class."""
    return TestOwnFolder.photos(folder, *(f"{name}/{copy}.png" for name in classes for copy in (0, 1)))


@pytest.mark.parametrize(
    "stray", [os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path)]
)
def test_an_image_that_is_no_file_is_refused(tmp_path, refusal, stray):
    folder = twice(tmp_path / "photos", "benign", "malignant")
    stray(folder / "benign" / "7.png")
    assert f"'{folder}/benign/7.png'" in refusal(DataError, load, folder)


@pytest.mark.parametrize("stray", ["benign/closeup/9.png", "preview.png"])
def test_an_image_at_another_depth_is_refused_by_name(tmp_path, refusal, stray):
    """Its folder would be a class, or all splits one."""
    folder = tmp_path / "photos"
    for split in ("train", "test"):
        twice(folder / split, "benign", "malignant")
    path = folder / ("train" if "/" in stray else "") / stray
    path.parent.mkdir(exist_ok=True)
    grey(3).save(path)
    assert f"'{path.relative_to(folder)}'" in refusal(DataError, load, folder)


@pytest.mark.parametrize("place", ["train/{}/closeup/9.png", "a/b/{}/9.png"])
def test_images_below_the_folder_of_their_class_are_refused(tmp_path, refusal, place):
    """The innermost folder would be the class: closeup, of all."""
    for name in ("benign", "malignant"):
        (path := tmp_path / "photos" / place.format(name)).parent.mkdir(parents=True)
        grey(3).save(path)
    assert f"'{place.format('benign')}'" in refusal(DataError, load, tmp_path / "photos")


@pytest.mark.parametrize("name", ["val", "dev", "validation"])
def test_images_of_a_validation_split_are_no_training_rows(tmp_path, name):
    for split in ("train", name):
        twice(tmp_path / split, "benign", "malignant")
    found = load(tmp_path)
    assert (len(found.labels), any("'validation'" in note for note in found.notes)) == (4, True)


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
    stream = io.BytesIO()
    colour(1, 2, 3).save(stream, form, save_all=True, append_images=[colour(200, 0, 0)])
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        *((f"9.{form}", pages(form), "2 pages") for form in ("tiff", "gif", "webp", "png")),
        ("9.png", deep_png(), "8 bits"),
        ("9.ppm", b"P6 1 1 65535\n" + bytes(6), "8 bits"),
        ("9.pgm", b"P5 1 1 65535\n" + bytes(2), "8 bits"),
    ],
)
def test_an_image_of_which_a_part_would_be_lost_is_refused(tmp_path, refusal, name, content, why):
    folder = twice(tmp_path / "photos", "benign", "malignant")
    (folder / "benign" / name).write_bytes(content)
    assert why in refusal(DataError, load, folder)


def test_a_photo_with_its_preview_in_it_is_read(tmp_path):
    """As phones write them: Pillow counts two pages."""
    folder = twice(tmp_path / "photos", "benign", "malignant")
    for path in folder.glob("*/*"):
        path.with_suffix(".jpg").write_bytes(pages("MPO"))
        path.unlink()
    assert len(load(folder).labels) == 4


def test_files_that_are_not_read_are_named(tmp_path):
    """Six, of which the first five by name; what describes the data is none of them."""
    folder = twice(tmp_path / "photos", "benign", "malignant")
    grey(3).save(folder / "benign" / "2.jfif", "jpeg")
    for name in ("a.heic", "b.zip", "c.txt", "d.7z", "e.xls", "f.docx", "README.txt", "LICENSE", "fetch.py", ".hidden"):
        (folder / name).write_text("none")
    arrays = load(folder)
    [note] = arrays.notes
    assert "a.heic, b.zip, c.txt, d.7z, e.xls and 1 more" in note
    assert arrays.labels.bincount().tolist() == [3, 2]


def test_a_link_to_a_folder_is_read_as_one_and_goes_round_once(tmp_path):
    folder, other = twice(tmp_path / "photos", "benign"), twice(tmp_path / "elsewhere", "malignant")
    (folder / "malignant").symlink_to(other / "malignant")
    (folder / "benign" / "round").symlink_to(folder)
    assert load(folder).labels.tolist() == [0, 0, 1, 1]


def test_images_beside_rows_that_do_not_describe_them_are_named(tmp_path):
    folder = twice(tmp_path / "photos", "benign", "malignant")
    (folder / "labels.csv").write_text("age,sick\n30,no\n40,yes\n50,no\n")
    [note] = [note for note in load(folder, label_column="sick").notes if "benign/0.png" in note]
    assert "metadata.csv" in note


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a/0.png,x\na/0.png,y\na/1.png,y\nb/2.png,x\n", ""),
        ("a/0.png,x\na/1.png,y\n", "1 of 3 images"),
        ("a/0.png,x\na/1.png,y\nb/2.png,x\nb/9.png,y\n", "1 of 4 rows"),
    ],
    ids=["two rows", "no row", "no image"],
)
def test_images_and_rows_of_metadata_that_do_not_match_are_said(tmp_path, refusal, rows, said):
    root = TestOwnFolder.photos(tmp_path / "mine", "a/0.png", "a/1.png", "b/2.png")
    (root / "metadata.csv").write_text("file_name,ward\n" + rows)
    if said:
        assert any(said in note for note in load(root, label_column="ward").notes)
    else:
        assert "a/0.png" in refusal(DataError, load, root, label_column="ward")


def test_images_with_metadata_in_folders_of_splits_are_of_these(tmp_path):
    """The hub's layout: folders of splits, without any of classes."""
    root = TestOwnFolder.photos(tmp_path / "mine", "train/0.png", "train/1.png", "test/2.png")
    (root / "train" / "metadata.csv").write_text("file_name,label\n0.png,x\n1.png,y\n")
    (root / "test" / "metadata.csv").write_text("file_name,label\n2.png,y\n")
    arrays = load(root, label_column="label")
    assert (arrays.train_rows, arrays.labels.tolist()) == (2, [0, 1, 1])


def test_a_folder_of_images_beside_a_split_is_refused(tmp_path, refusal):
    """As of rows, train.csv beside holdout.csv: nobody can tell."""
    for name in ("train", "holdout"):
        twice(tmp_path / "photos" / name, "benign", "malignant")
    said = refusal(DataError, load, tmp_path / "photos")
    assert ("train/benign/0.png" in said, "holdout/benign/0.png" in said) == (True, True)


def test_an_image_whose_name_is_not_utf_8_is_named(tmp_path, refusal):
    folder = twice(tmp_path / "photos", "benign", "malignant")
    os.rename(folder / "benign" / "0.png", os.fsencode(folder / "benign") + b"/\xff.png")
    assert f"'{folder}/benign/\\udcff.png'" in refusal(DataError, load, folder)
