"""Samples in memory: one array a data set and process, of which every client holds row numbers only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from hashlib import blake2b
from math import inf
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hetfl_flwr.common.errors import DataError

MOST_SHOWN = 20
"""Classes whose counts are shown, at most."""

MOST_DEVIATIONS = 100.0
"""Standard deviations from the mean within which a public sample of another client is taken as it is."""


@dataclass(frozen=True)
class DataSpec:
    """What a model must fit.

    Parameters
    ----------
    shape : tuple of int
        One input: (channels, height, width) of an image, (channels, length) of a series, (features,) of a table's row,
        (tokens,) of a text.
    classes : int
        C, the number of classes; labels are 0..C-1.
    vocabulary : int
        V, the number of different tokens of a text: its inputs are int64, 0..V-1, where 0 stands for the end that fills
        a short text up. 0: the data are no texts, and inputs are float32.
    """

    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0

    @property
    def kind(self) -> Literal["image", "series", "text", "table"]:
        """What an input is."""
        return "image" if self.is_image else "series" if self.is_series else "text" if self.is_text else "table"

    @property
    def is_text(self) -> bool:
        """Whether an input is a row of tokens."""
        return self.vocabulary > 0

    @property
    def is_table(self) -> bool:
        """Whether an input is a row of a table."""
        return len(self.shape) == 1 and not self.is_text

    @property
    def is_image(self) -> bool:
        """Whether an input is an image."""
        return len(self.shape) == 3

    @property
    def is_series(self) -> bool:
        """Whether an input is a time series of one or more channels."""
        return len(self.shape) == 2


@dataclass(frozen=True)
class Column:
    """A column of a table: what its cells are, and how they became inputs.

    Parameters
    ----------
    name : str
        As the file has it.
    kind : {"number", "date", "category"}
        A number and a date, as the number of days since 1970, are one input each; of a category `values` tells.
    notation : str
        How texts are read as numbers or dates: one of `hetfl_flwr.data.sources.notations`.
    values : tuple of str or None
        The values of a category in the order of its inputs, None for a missing one. Two are one input: 1 is the second.
    constant : bool
        Whether it holds one number only: it then has no influence.
    """

    name: str
    kind: Literal["number", "date", "category"]
    notation: str = ""
    values: tuple[str | None, ...] = ()
    constant: bool = False

    @property
    def input_names(self) -> tuple[str, ...]:
        """What its inputs are called."""
        if self.kind == "category":
            return tuple(f"{self.name}={value}" for value in self.values[len(self.values) == 2 :])
        return (f"{self.name} (days since 1970)" if self.kind == "date" else self.name,)


@dataclass(frozen=True, eq=False)
class Arrays:
    """A whole data set: the rows of its training split, then those of its own test split.

    Parameters
    ----------
    spec : DataSpec
        Shape of one input and number of classes.
    inputs : Tensor
        (N, *shape), in the type it is stored in: uint8 for images, int32 for texts, float32 for series and for tables,
        in which NaN stands for a value that is missing.
    labels : Tensor
        (N,) int64, 0..C-1.
    train_rows : int
        How many of the N rows are the training split, 1 or more.
    peak : float or Tensor
        The stored value that stands for 1.0, above 0; or float32 ones, (features,) of a table, (channels, 1) of
        series, (channels, 1, 1) of images whose colours are scaled apart. A column or channel whose peak is infinite is
        0 throughout.
    centre : Tensor
        (*shape) float32, subtracted from each scaled input.
    groups : tuple of int
        How many inputs each column of a table became, a category one for each of its values; their sum is the number
        of features. Empty: one each.
    numeric : Tensor, optional
        (features,) bool, which inputs of a table are numbers, not categories; None: all.
    owners : Tensor, optional
        (N,) int64, whose each row is, 0 or more, where the partition goes by owners; else None.
    owner_names : tuple of str
        What the owners are called, by their numbers.
    class_names : tuple of str
        What the C classes are called; empty: their numbers.
    input_names : tuple of str
        What the inputs of a table are called, ``COLUMN`` or ``COLUMN=VALUE``; empty: nothing.
    words : callable, optional
        Returns the words that a text's tokens from 2 on stand for, where these depend on the data set; None: a token is
        the same word for everybody.
    columns : tuple of Column
        The columns of a table, in the order of `groups`; empty: each input is a number.
    brightest : float
        The largest stored value of an image's pixels, whatever they are scaled by.
    notes : tuple of str
        What was done with the data that nobody asked for, a line each; names in them are `private`.
    """

    spec: DataSpec
    inputs: Tensor
    labels: Tensor
    train_rows: int
    peak: float | Tensor
    centre: Tensor
    groups: tuple[int, ...] = ()
    numeric: Tensor | None = None
    owners: Tensor | None = None
    owner_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()
    words: Callable[[], Sequence[str]] | None = None
    columns: tuple[Column, ...] = ()
    brightest: float = 255.0
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return how many rows of what they are, and none of them."""
        names = [name if name == str(number) else f"{number} ({name})" for number, name in enumerate(self.class_names)]
        return f"Arrays({len(self.labels)} rows: {_inputs_in_words(self.spec)}; classes {', '.join(names)})"


def _inputs_in_words(spec: DataSpec) -> str:
    """Return what inputs are, such as "image 1 x 8 x 8, 10 classes"."""
    size = " x ".join(map(str, spec.shape))
    unit = {"image": "", "series": "", "text": " tokens", "table": " inputs"}[spec.kind]
    return f"{spec.kind} {size}{unit}, {spec.classes} classes"


def _counts_in_words(samples: "Batches", spec: DataSpec, names: Sequence[str]) -> str:
    """Return how many samples there are, and of each class."""
    counts = samples.class_counts(spec.classes).tolist()
    called = names or [str(number) for number in range(spec.classes)]
    shown = [f"{name}: {count}" for name, count in zip(called[:MOST_SHOWN], counts, strict=False)]
    return f"{len(samples)} samples ({', '.join(shown)}{', ...' if len(counts) > MOST_SHOWN else ''})"


@cache
def _placed(arrays: Arrays, device: torch.device) -> Arrays:
    """Return the one copy of the arrays on a device, which all clients there share."""
    return replace(
        arrays,
        inputs=arrays.inputs.to(device),
        labels=arrays.labels.to(device),
        peak=arrays.peak.to(device) if isinstance(arrays.peak, Tensor) else arrays.peak,
        centre=arrays.centre.to(device),
    )


def prepared(inputs: Tensor, spec: DataSpec, peak: float | Tensor, centre: Tensor) -> Tensor:
    """Return stored inputs (B, *shape) as a model takes them; `Arrays` says what the rest is."""
    if spec.is_text:
        return inputs.long()
    scaled = inputs.to(torch.float32) / peak - centre
    return scaled.nan_to_num(nan=0.0) if spec.is_table else scaled


class Batches(Protocol):
    """What training and evaluation ask of samples: `Samples` and `Joined` both answer."""

    def __len__(self) -> int:
        """Return N, the number of samples."""
        ...

    @property
    def labels(self) -> Tensor:
        """The labels of all N samples: (N,) int64."""
        ...

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (B, *shape) float32 and labels (B,) of the samples at positions (B,)."""
        ...

    def class_counts(self, classes: int) -> Tensor:
        """Return how many samples there are of each class: (C,) int64."""
        ...


@dataclass(frozen=True, eq=False)
class Samples:
    """Some rows of a data set, without a copy of them.

    Parameters
    ----------
    arrays : Arrays
        The whole data set, shared.
    rows : Tensor
        (N,) int64, the rows of ``arrays`` that these samples are.

    Examples
    --------
    >>> arrays = Arrays(DataSpec((2,), 3), torch.tensor([[0, 4], [8, 2]]), torch.tensor([2, 0]), 2, 8.0,
    ...                 torch.zeros(2))
    >>> samples = Samples(arrays, torch.tensor([1]))
    >>> len(samples), samples.class_counts(3)
    (1, tensor([1, 0, 0]))
    >>> samples.batch(torch.tensor([0]))
    (tensor([[1.0000, 0.2500]]), tensor([0]))
    """

    arrays: Arrays
    rows: Tensor

    def __repr__(self) -> str:
        """Return how many they are, of what, and of which classes; no row."""
        arrays = self.arrays
        counts = _counts_in_words(self, arrays.spec, arrays.class_names)
        return f"Samples({_inputs_in_words(arrays.spec)}: {counts})"

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return len(self.rows)

    @property
    def labels(self) -> Tensor:
        """The labels of all N samples: (N,) int64."""
        return self.arrays.labels[self.rows]

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return some samples, ready for a model.

        Parameters
        ----------
        rows : Tensor
            (B,) int64, positions 0..N-1 among these samples, on any device.

        Returns
        -------
        inputs : Tensor
            (B, *shape) float32, scaled by the peak, less the centre, a missing value 0; of a text int64, its tokens.
        labels : Tensor
            (B,) int64.

        Raises
        ------
        IndexError
            If a position is outside the samples.
        """
        inputs, labels = self._raw(rows)
        return self._prepared(inputs), labels

    def _raw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        chosen = self.rows[rows.to(self.rows.device)]
        return self.arrays.inputs[chosen], self.arrays.labels[chosen]

    def _prepared(self, inputs: Tensor) -> Tensor:
        return prepared(inputs, self.arrays.spec, self.arrays.peak, self.arrays.centre)

    def class_counts(self, classes: int) -> Tensor:
        """Return how many samples there are of each class: (C,) int64, C the number of classes."""
        return torch.bincount(self.labels, minlength=classes)

    def first(self, count: int) -> "Samples":
        """Return the first ``count`` of these samples, or all of them where there are fewer."""
        return Samples(self.arrays, self.rows[:count])

    def stored(self) -> tuple[Tensor, Tensor]:
        """Return copies of the rows as they are stored, to show to others: what `like` takes.

        Returns
        -------
        inputs : Tensor
            (N, *shape) on the CPU, uint8 for images, int32 for texts, else float32; neither scaled nor centred.
            A value that is missing is this client's mean of its column; 0 where these rows have none to tell.
        labels : Tensor
            (N,) int64, on the CPU.
        """
        inputs = self.arrays.inputs[self.rows]
        if self.arrays.spec.is_table:
            usual = self.arrays.centre * self.arrays.peak
            usual = torch.where(usual.isnan(), inputs.nanmean(0), usual)  # 0 x inf: a column of one number only
            inputs = torch.where(inputs.isnan(), usual.nan_to_num(0.0), inputs)
        return inputs.cpu(), self.labels.cpu()

    def like(self, inputs: Tensor, labels: Tensor) -> "Samples":
        """Return rows of others as samples, scaled and centred as these are, on the same device.

        Parameters
        ----------
        inputs : Tensor
            (R, *shape), as `stored` gives them. Their stored values must mean what they mean here, which holds
            among the clients of one data set or one rotated family. Of a standardised table or series, values more than
            `MOST_DEVIATIONS` deviations from this client's mean are cut to that.
        labels : Tensor
            (R,) int64, 0..C-1.

        Raises
        ------
        DataError
            If the rows are not of this data set's shape and type, a label is none of its classes, or a token none of
            its vocabulary.
        """
        mine = self.arrays.inputs
        if inputs.shape[1:] != mine.shape[1:] or inputs.dtype != mine.dtype:
            raise DataError(
                f"rows of others are {inputs.dtype} of shape {tuple(inputs.shape[1:])}, this client's are {mine.dtype} "
                f"of shape {tuple(mine.shape[1:])}: rows can be shared among clients of one data set or family only"
            )
        classes = self.arrays.spec.classes
        if labels.shape != inputs.shape[:1] or not bool(((labels >= 0) & (labels < classes)).all()):
            raise DataError(f"{len(inputs)} rows of others need as many labels 0..{classes - 1}, got {labels}")
        vocabulary = self.arrays.spec.vocabulary
        if vocabulary and not bool(((inputs >= 0) & (inputs < vocabulary)).all()):
            raise DataError(f"texts of others have tokens outside 0..{vocabulary - 1}")
        theirs = replace(
            self.arrays,
            inputs=self._cut(inputs.to(mine.device)),
            labels=labels.to(mine.device),
            train_rows=len(labels),
            owners=None,
        )
        return Samples(theirs, torch.arange(len(labels), device=mine.device))

    def _cut(self, inputs: Tensor) -> Tensor:
        peak, centre = self.arrays.peak, self.arrays.centre
        if not (isinstance(peak, Tensor) and (self.arrays.spec.is_table or self.arrays.spec.is_series)):
            return inputs
        low, high = (peak * (centre + end) for end in (-MOST_DEVIATIONS, MOST_DEVIATIONS))
        return inputs.clamp(low.nan_to_num(nan=-inf), high.nan_to_num(nan=inf))  # 0 x inf: of one number only

    def to(self, device: torch.device | str) -> "Samples":
        """Return these samples on a device; one copy of the data set is kept there for all clients."""
        return Samples(_placed(self.arrays, torch.device(device)), self.rows.to(device))


@dataclass(frozen=True, eq=False)
class Joined:
    """Several samples as one, one after the other, without a copy of them.

    Parameters
    ----------
    parts : tuple of Samples
        One or more, of one shape and on one device; each may be empty.

    Raises
    ------
    ValueError
        If there is no part, or the parts differ in shape.

    Examples
    --------
    >>> arrays = Arrays(DataSpec((1,), 2), torch.tensor([[0], [1], [2]]), torch.tensor([0, 1, 1]), 3, 1.0,
    ...                 torch.zeros(1))
    >>> joined = Joined((Samples(arrays, torch.tensor([2])), Samples(arrays, torch.tensor([0, 1]))))
    >>> joined.batch(torch.tensor([1, 0, 2]))
    (tensor([[0.],
            [2.],
            [1.]]), tensor([0, 1, 1]))
    """

    parts: tuple[Samples, ...]

    def __post_init__(self) -> None:
        """Check that the parts can be one."""
        shapes = {part.arrays.spec.shape for part in self.parts}
        if len(shapes) != 1:
            raise ValueError(f"samples can be joined where all have one shape, got: {sorted(shapes) or 'no samples'}")

    def __repr__(self) -> str:
        """Return how many they are, of what, and of which classes; no row."""
        arrays = self.parts[0].arrays
        counts = _counts_in_words(self, arrays.spec, arrays.class_names)
        return f"Joined({_inputs_in_words(arrays.spec)}: {counts})"

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return sum(map(len, self.parts))

    @cached_property
    def labels(self) -> Tensor:
        """The labels of all N samples: (N,) int64."""
        return torch.cat([part.labels for part in self.parts])

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return some samples, ready for a model, in the order asked for.

        Parameters
        ----------
        rows : Tensor
            (B,) int64, positions 0..N-1 among all the samples, on any device.

        Returns
        -------
        inputs : Tensor
            (B, *shape) float32, each scaled and centred as its own part is.
        labels : Tensor
            (B,) int64.

        Raises
        ------
        IndexError
            If a position is outside the samples.
        """
        ordered, order = rows.cpu().sort()
        if len(rows) and not 0 <= int(ordered[0]) <= int(ordered[-1]) < len(self):
            raise IndexError(f"positions {int(ordered[0])}..{int(ordered[-1])} of {len(self)} samples")
        cuts = torch.searchsorted(ordered, self._ends).tolist()
        some = [
            (part._raw if self._alike else part.batch)(ordered[start:stop] - (end - len(part)))
            for part, end, start, stop in zip(self.parts, self._ends.tolist(), [0, *cuts[:-1]], cuts, strict=True)
            if stop > start or not len(rows)
        ]
        inputs, labels = (torch.cat(blocks) for blocks in zip(*some, strict=True))
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order))).to(labels.device)
        chosen = inputs[back]
        return self.parts[0]._prepared(chosen) if self._alike else chosen, labels[back]

    @cached_property
    def _alike(self) -> bool:
        """Whether all parts are scaled and centred alike, so that a batch of them can be at once."""
        first = self.parts[0].arrays
        return all(
            part.arrays.peak is first.peak and part.arrays.centre is first.centre and part.arrays.spec == first.spec
            for part in self.parts
        )

    @cached_property
    def _ends(self) -> Tensor:
        return torch.tensor([len(part) for part in self.parts]).cumsum(0)

    def class_counts(self, classes: int) -> Tensor:
        """Return how many samples there are of each class: (C,) int64, C the number of classes."""
        return torch.bincount(self.labels, minlength=classes)


ROWS_AT_ONCE = 4096
"""Rows of which a digest is made at a time."""


def _take_in(digest: blake2b, tensor: Tensor) -> None:
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(_bytes(tensor))


def _bytes(tensor: Tensor) -> bytes:
    return np.ascontiguousarray(tensor.cpu().numpy()).tobytes()


@lru_cache(maxsize=8)
def _inputs_digest(arrays: Arrays, rows: bytes) -> bytes:
    """Return a digest of some inputs as they are stored: once for a test set that many clients share."""
    digest, numbers = blake2b(digest_size=8), torch.from_numpy(np.frombuffer(rows, np.int64).copy())
    numbers = numbers.to(arrays.inputs.device)
    for first in range(0, len(numbers), ROWS_AT_ONCE):
        _take_in(digest, arrays.inputs[numbers[first : first + ROWS_AT_ONCE]])
    return digest.digest()


def unlike(before: str, now: str) -> str:
    """Return in what a client's data differ by two of their digests, as messages say it; empty: in nothing.

    Digests of earlier versions have the part before the dash alone.
    """
    trained, _, measured = before.partition("-")
    trained_now, _, measured_now = now.partition("-")
    if trained != trained_now:
        return "training samples or labels"
    return "validation or test samples" if measured and measured != measured_now else ""


@dataclass(frozen=True)
class ClientData:
    """What one client holds; no row is in two of its three sets.

    Parameters
    ----------
    spec : DataSpec
        What the client's model must fit.
    train, validation, test : Samples
        Its training, validation and test samples.
    public_rows : int
        How many of the training samples its algorithm may show to others, 0 to all of them.
    domain : int
        Index of the client's own domain, 0 or more.
    others : tuple of Samples
        The test samples of each other domain of a rotated family that has a client, by domain index; empty for
        every other data set. They are scaled and centred as the client's own are.
    others_validation : tuple of Samples
        The validation samples of the same domains.
    name : str
        Whose data they are: the owners of its rows where the partition goes by owners, else its domain where there are
        several; empty: nobody's in particular.
    """

    spec: DataSpec
    train: Samples
    validation: Samples
    test: Samples
    public_rows: int = 0
    domain: int = 0
    others: tuple[Samples, ...] = ()
    others_validation: tuple[Samples, ...] = ()
    name: str = ""

    def __repr__(self) -> str:
        """Return what the client holds: shapes, classes and counts, and no row."""
        names = self.train.arrays.class_names
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        lines = [f"  {part}: {_counts_in_words(samples, self.spec, names)}" for part, samples in parts.items()]
        lines[0] += f", {self.public_rows} of them public"
        return "\n".join([f"ClientData: {_inputs_in_words(self.spec)}", *lines])

    @property
    def owners(self) -> int:
        """How many owners its training rows have, where the partition goes by owners; else 0."""
        owners = self.train.arrays.owners
        if owners is None:
            return 0
        return len(set(owners[self.train.rows.cpu()].tolist()))

    @cached_property
    def class_counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """How many training samples, and how many test samples, there are of each class: (C,) each."""
        trained, tested = (one.class_counts(self.spec.classes).cpu().numpy() for one in (self.train, self.test))
        return trained, tested

    @cached_property
    def digest(self) -> str:
        """A digest of what the client trains on, as it is stored and scaled, and of what it measures itself by.

        It tells one client's data from what they become when a row, a label, a cell or their order changes. The part
        before the dash is of training inputs and all labels, the other one of validation and test inputs; see
        `unlike`.
        """
        arrays, digest = self.train.arrays, blake2b(digest_size=8)
        peak = arrays.peak if isinstance(arrays.peak, Tensor) else torch.tensor(arrays.peak)
        labels = (samples.labels for samples in (self.train, self.validation, self.test))
        for tensor in (arrays.centre, peak, *labels):
            _take_in(digest, tensor)
        for first in range(0, len(self.train), ROWS_AT_ONCE):
            _take_in(digest, arrays.inputs[self.train.rows[first : first + ROWS_AT_ONCE]])
        measured = (_inputs_digest(samples.arrays, _bytes(samples.rows)) for samples in (self.validation, self.test))
        return f"{digest.hexdigest()}-{blake2b(b''.join(measured), digest_size=8).hexdigest()}"

    @property
    def public(self) -> Samples:
        """The training samples that may be shown to others: the first ``public_rows`` of ``train``."""
        return self.train.first(self.public_rows)

    @property
    def private(self) -> Samples:
        """The training samples that are never shown to others: all but the public ones."""
        return Samples(self.train.arrays, self.train.rows[self.public_rows :])

    def to(self, device: torch.device) -> "ClientData":
        """Return the same data with all samples on a device."""
        return replace(
            self,
            train=self.train.to(device),
            validation=self.validation.to(device),
            test=self.test.to(device),
            others=tuple(samples.to(device) for samples in self.others),
            others_validation=tuple(samples.to(device) for samples in self.others_validation),
        )
