"""The shape and kind of a data set's inputs, which a model must fit."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class DataSpec:
    """What a model must fit: the shape of the inputs and the number of classes.

    Parameters
    ----------
    shape : tuple of int
        The shape of one input: (channels, height, width) of an image, (channels, length) of a series, (features,) of a
        row of a table, (tokens,) of a text.
    classes : int
        C, the number of classes; labels are 0..C-1.
    vocabulary : int
        V, the number of distinct tokens of texts, whose inputs are int64, 0..V-1, with 0 as padding. 0 if inputs are
        not texts; inputs are then float32.
    """

    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0

    @property
    def kind(self) -> Literal["image", "series", "text", "table"]:
        """The kind of the inputs."""
        shapes: dict[int, Literal["image", "series"]] = {3: "image", 2: "series"}
        return "text" if self.vocabulary else shapes.get(len(self.shape), "table")


CLOCK = "hour:minute:second"
"""The notation of times of day, which become parts of a day."""


@dataclass(frozen=True)
class Column:
    """A column of a table: the kind of its cells, and how they become inputs.

    Parameters
    ----------
    name : str
        The name in the file.
    kind : {"number", "date", "category"}
        A number is one input; so is a date, as days since 1970. A category is one input for each of its `values`.
    notation : str
        How texts are read as numbers or dates: one of the notations of `hetfl_flwr.data.columns`.
    values : tuple of str or None
        The values of a category in the order of its inputs, None for a missing value. Two values are a single input: 0
        for the first, 1 for the second and 0.5 for any other.
    constant : bool
        Whether all its numbers are equal; standardized, it then has no influence.
    unit : str
        The text before or after each number, such as ``$``.
    missing : tuple of str
        Words and numbers that mark missing values, from ``missing-values``.
    """

    name: str
    kind: Literal["number", "date", "category"]
    notation: str = ""
    values: tuple[str | None, ...] = ()
    constant: bool = False
    unit: str = ""
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Column":
        """Return a column from its JSON form; unknown keys are ignored."""
        own: dict[str, Any] = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        own |= {key: tuple(value) for key, value in own.items() if isinstance(value, list)}
        return cls(**own)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of its inputs; they include the unit, so that other units have other names."""
        if self.kind == "category" and len(self.values) == 2:
            return (f"{self.name}={self.values[1]} (else {self.values[0]})",)
        if self.kind == "category":
            return tuple(f"{self.name}={value}" for value in self.values)
        counted = self.unit if self.kind == "number" else "parts of a day" if self.is_clock else "days since 1970"
        return (f"{self.name} ({counted})" if counted else self.name,)

    @property
    def is_clock(self) -> bool:
        """Whether it holds times of day."""
        return self.notation == CLOCK


def inputs_in_words(spec: DataSpec) -> str:
    """Describe inputs and classes in words, such as "image 1 x 8 x 8, 10 classes"."""
    size = " x ".join(map(str, spec.shape))
    unit = {"image": "", "series": "", "text": " tokens", "table": " inputs"}[spec.kind]
    return f"{spec.kind} {size}{unit}, {spec.classes} classes"
