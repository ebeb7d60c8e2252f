"""What is wrong with one thing, taken down while it is looked at, and told in one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hetfl_flwr.common.errors import DataError


@dataclass
class Problems:
    """What is wrong with a data set.

    Parameters
    ----------
    place : str
        What messages call it.
    found : list of (str, str)
        What is wrong, and the way out; empty where the first text says that as well.

    Examples
    --------
    >>> problems = Problems("'wards.csv'")
    >>> problems.add("column 'age' of 'wards.csv' holds lists", "ignore it")
    >>> problems.add("'wards.csv' has no ward", "add it")
    >>> print(problems.error)
    'wards.csv' has 2 problems: (1) column 'age' holds lists; (2) has no ward; ways out: (1) ignore it; (2) add it
    """

    place: str
    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, what: str, way_out: str = "") -> None:
        """Take down what is wrong, and what to do."""
        self.found.append((what, way_out))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Take down the `DataError` that ends a block, and go on after it."""
        try:
            yield
        except DataError as error:
            self.add(error.marked)

    def refuse(self) -> None:
        """Raise an error with all problems in one line, if there are any.

        Raises
        ------
        DataError
            Names all of them.
        """
        if self.found:
            raise self.error

    @property
    def error(self) -> DataError:
        """All problems, of which there is one or more, as an error to be raised."""
        return DataError(": ".join(filter(None, self.found[0])) if len(self.found) == 1 else self._numbered())

    def _numbered(self) -> str:
        place = re.escape(self.place)
        own = re.compile(rf"^{place} | of {place}(?!\[)")  # dataset['North'] is part of dataset
        numbered = "; ".join(f"({number}) {own.sub('', what)}" for number, (what, _) in enumerate(self.found, start=1))
        of: dict[str, list[str]] = {}
        for number, (_, way) in enumerate(self.found, start=1):
            of.setdefault(way, []).append(f"({number})")
        ways = "; ".join(f"{', '.join(numbers)} {way}" for way, numbers in of.items() if way)
        return f"{self.place} has {len(self.found)} problems: {numbered}" + f"; ways out: {ways}" * bool(ways)
