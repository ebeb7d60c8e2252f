"""The form of a data set's inputs, which a model must fit."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal


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
        shapes: dict[int, Literal["image", "series"]] = {3: "image", 2: "series"}
        return "text" if self.vocabulary else shapes.get(len(self.shape), "table")


CLOCK = "hour:minute:second"
"""The notation of times of day, as parts of one."""


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
        How texts are read as numbers or dates: one of the notations of `hetfl_flwr.data.columns`.
    values : tuple of str or None
        The values of a category in the order of its inputs, None for a missing one. Two are one input: 0 is the first,
        1 the second and 0.5 neither.
    constant : bool
        Whether it holds one number only: it then has no influence.
    unit : str
        What stands before or after each number, such as ``$``.
    missing : tuple of str
        Words and numbers for what is missing, as ``missing-values`` has them.
    """

    name: str
    kind: Literal["number", "date", "category"]
    notation: str = ""
    values: tuple[str | None, ...] = ()
    constant: bool = False
    unit: str = ""
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "Column":
        """Return a column that was written as JSON; keys of its own are all that counts."""
        own: dict[str, Any] = {one.name: said[one.name] for one in fields(cls) if one.name in said}
        own |= {key: tuple(value) for key, value in own.items() if isinstance(value, list)}
        return cls(**own)

    @property
    def input_names(self) -> tuple[str, ...]:
        """What its inputs are called; what is measured otherwise has another name."""
        if self.kind == "category":
            return tuple(f"{self.name}={value}" for value in self.values[len(self.values) == 2 :])
        counted = self.unit if self.kind == "number" else "parts of a day" if self.is_clock else "days since 1970"
        return (f"{self.name} ({counted})" if counted else self.name,)

    @property
    def is_clock(self) -> bool:
        """Whether it holds times of day."""
        return self.notation == CLOCK


def inputs_in_words(spec: DataSpec) -> str:
    """Return what inputs are, such as "image 1 x 8 x 8, 10 classes"."""
    size = " x ".join(map(str, spec.shape))
    unit = {"image": "", "series": "", "text": " tokens", "table": " inputs"}[spec.kind]
    return f"{spec.kind} {size}{unit}, {spec.classes} classes"
