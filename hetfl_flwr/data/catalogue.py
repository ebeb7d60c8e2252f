"""The data sets known by name. Any other is reached by its hub id, ``owner/name``, or by its folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from hetfl_flwr.data.bundled import read_breast_cancer, read_digits, read_digits_colour, read_waveform
from hetfl_flwr.data.reading import Reading, parse_classes, parse_vocabulary
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.errors import DataError

_NO_COLUMNS = Reading()
_DIGITS = tuple(map(str, range(10)))  # whatever a copy of such a data set calls them


@dataclass(frozen=True)
class DatasetEntry:
    """One data set of the catalogue.

    Parameters
    ----------
    spec : DataSpec
        Shape of one input, with all keys at their defaults, and number of classes. Height and width 0: images differ
        in size.
    train_rows, test_rows : int
        Samples in its training split and in its own test split.
    licence : str
        Its licence, and whose word that is.
    bundled : callable, optional
        Reads it where it comes with scikit-learn or is made here; None for any other.
    place : str
        Its hub id, ``owner/name``, which is its folder below ``data-dir``, too; empty where it is bundled.
    origin : str
        Where a data set can be had that is not on the hub: then ``place`` is its folder alone. Of a bundled one, where
        it comes from, if not from scikit-learn.
    form : str
        As what its folder is taken, where that is as the origin has it; empty: as any other one.
    columns : Reading
        Its columns; one that the run config names instead goes before.
    values : tuple of str or int
        What labels are in the files, in class order: so classes are the same for all clients, whoever has which.
        Empty: 0..C-1.
    names : tuple of str
        What the classes are called, in class order, where the files call them otherwise; empty: as there.
    without : tuple of int
        Labels whose rows are left out.
    domains : int
        How many domains its column of domains has; 1 if it has none.
    """

    spec: DataSpec
    train_rows: int
    test_rows: int
    licence: str
    bundled: Callable[[], Arrays] | None = None
    place: str = ""
    origin: str = ""
    form: str = ""
    columns: Reading = _NO_COLUMNS
    values: tuple[str | int, ...] = ()
    names: tuple[str, ...] = ()
    without: tuple[int, ...] = ()
    domains: int = 1

    def completed(self, reading: Reading) -> Reading:
        """Return a reading with the entry's columns where it names none; bundled data have no columns."""
        if self.bundled:
            return Reading(image_size=reading.image_size, classes=reading.classes)
        names = (field.name for field in fields(Reading))
        return replace(reading, **{name: getattr(reading, name) or getattr(self.columns, name) for name in names})

    def spec_for(self, reading: Reading) -> DataSpec:
        """Return what a model must fit, as far as that can be known without the files.

        Raises
        ------
        DataError
            If images differ in size, and none is asked for.
        """
        spec = replace(self.spec, classes=len(parse_classes(reading.classes)) or self.spec.classes)
        if spec.is_text:
            vocabulary = parse_vocabulary(reading.vocabulary)[1]
            return replace(spec, shape=(reading.text_length,), vocabulary=vocabulary)
        if not spec.is_image:
            return spec
        channels, height, width = spec.shape
        shape = (channels, reading.image_size or height, reading.image_size or width)
        if 0 in shape:
            raise DataError(f"{self.place} has images of many sizes: set image-size to one for all")
        return replace(spec, shape=shape)


def _uci(
    place: str, number: int, spec: DataSpec, rows: tuple[int, int], label: str, *values: str | int
) -> DatasetEntry:
    """Return a table of the UCI archive."""
    return DatasetEntry(
        spec=spec,
        train_rows=rows[0],
        test_rows=rows[1],
        licence="CC BY 4.0 (UCI)",
        place=f"uci/{place}",
        origin=f"https://archive.ics.uci.edu/dataset/{number}",
        columns=Reading(label_column=label),
        values=values,
    )


CATALOGUE: Mapping[str, DatasetEntry] = {
    "adult": _uci("adult", 2, DataSpec((107,), 2), (32_561, 16_281), "income", "<=50K", ">50K"),
    "breast-cancer": DatasetEntry(
        spec=DataSpec(shape=(30,), classes=2),
        train_rows=455,
        test_rows=114,
        licence="CC BY 4.0 (UCI)",
        bundled=read_breast_cancer,
    ),
    "breast-cancer-wisconsin": _uci("breast-cancer-wisconsin", 15, DataSpec((9,), 2), (699, 0), "diagnosis", 2, 4),
    "cifar10": DatasetEntry(
        spec=DataSpec(shape=(3, 32, 32), classes=10),
        train_rows=50_000,
        test_rows=10_000,
        licence="not stated (hub card)",
        place="uoft-cs/cifar10",
        columns=Reading(image_column="img", label_column="label"),
    ),
    "cifar100": DatasetEntry(
        spec=DataSpec(shape=(3, 32, 32), classes=100),
        train_rows=50_000,
        test_rows=10_000,
        licence="not stated (hub card)",
        place="uoft-cs/cifar100",
        columns=Reading(image_column="img", label_column="fine_label"),
    ),
    "digits": DatasetEntry(
        spec=DataSpec(shape=(1, 8, 8), classes=10),
        train_rows=1437,
        test_rows=360,
        licence="CC BY 4.0 (UCI)",
        bundled=read_digits,
    ),
    "digits-colour": DatasetEntry(
        spec=DataSpec(shape=(3, 16, 16), classes=10),
        train_rows=1437,
        test_rows=360,
        licence="CC BY 4.0 (UCI)",
        bundled=read_digits_colour,
    ),
    "fashion-mnist": DatasetEntry(
        spec=DataSpec(shape=(1, 28, 28), classes=10),
        train_rows=60_000,
        test_rows=10_000,
        licence="MIT (hub card)",
        place="zalando-datasets/fashion_mnist",
        columns=Reading(image_column="image", label_column="label"),
    ),
    "har": DatasetEntry(
        spec=DataSpec(shape=(9, 128), classes=6),
        train_rows=7352,
        test_rows=2947,
        licence="CC BY 4.0 (UCI)",
        place="uci/har",
        origin="https://archive.ics.uci.edu/dataset/240",
        form="the unpacked folder 'UCI HAR Dataset'",
        columns=Reading(series_column="signal", label_column="activity"),
        values=tuple(range(6)),
        names=("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying"),
    ),
    "hcc": _uci("hcc-survival", 423, DataSpec((49,), 2), (165, 0), "1_survives_0_dies"),
    "ilpd": _uci("ilpd", 225, DataSpec((10,), 2), (583, 0), "label", 1, 2),
    "mnist": DatasetEntry(
        spec=DataSpec(shape=(1, 28, 28), classes=10),
        train_rows=60_000,
        test_rows=10_000,
        licence="MIT (hub card)",
        place="ylecun/mnist",
        columns=Reading(image_column="image", label_column="label"),
        names=_DIGITS,
    ),
    "mnist-m": DatasetEntry(
        spec=DataSpec(shape=(3, 32, 32), classes=10),
        train_rows=59_001,
        test_rows=9001,
        licence="MIT (hub card)",
        place="Mike0307/MNIST-M",
        columns=Reading(image_column="image", label_column="label"),
        names=_DIGITS,
    ),
    "office-home": DatasetEntry(
        spec=DataSpec(shape=(3, 0, 0), classes=65),
        train_rows=15_588,
        test_rows=0,
        licence="fair use, research (hub card)",
        place="flwrlabs/office-home",
        columns=Reading(image_column="image", label_column="label", domain_column="domain"),
        domains=4,
    ),
    "pacs": DatasetEntry(
        spec=DataSpec(shape=(3, 227, 227), classes=7),
        train_rows=9991,
        test_rows=0,
        licence="not stated (hub card)",
        place="flwrlabs/pacs",
        columns=Reading(image_column="image", label_column="label", domain_column="domain"),
        domains=4,
    ),
    "sentiment140": DatasetEntry(
        spec=DataSpec(shape=(32,), classes=2, vocabulary=20_000),
        train_rows=1_600_000,
        test_rows=359,
        licence="not stated (hub card)",
        place="stanfordnlp/sentiment140",
        columns=Reading(text_column="text", label_column="sentiment"),
        values=(0, 4),
        without=(2,),  # neutral: 139 rows of the test split, none of the training split
    ),
    "synthetic-digits": DatasetEntry(
        spec=DataSpec(shape=(3, 32, 32), classes=10),
        train_rows=479_400,
        test_rows=9553,
        licence="not stated (author's page)",
        place="synthetic-digits",
        origin="http://yaroslav.ganin.net",
        columns=Reading(label_column="label"),
        names=_DIGITS,
    ),
    "usps": DatasetEntry(
        spec=DataSpec(shape=(1, 16, 16), classes=10),
        train_rows=7291,
        test_rows=2007,
        licence="not stated (hub card)",
        place="flwrlabs/usps",
        columns=Reading(image_column="image", label_column="label"),
        names=_DIGITS,
    ),
    "waveform": DatasetEntry(
        spec=DataSpec(shape=(1, 21), classes=3),
        train_rows=4000,
        test_rows=1000,
        licence="none needed (made here)",
        bundled=read_waveform,
        origin="Breiman et al. 1984",
    ),
}

ROTATED: Mapping[str, str] = {"rotated-digits": "digits", "rotated-mnist": "mnist"}
"""Rotated families that are listed, and the data set that each turns; any other ``rotated-NAME`` will do as well."""
