"""What is wrong with one thing, taken down while it is looked at, and told in one line."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hetfl_flwr.errors import DataError
from hetfl_flwr.text import LONGEST_TEXT

_MOST = 50  # problems with one way out that are tried: more are longer than a line may be


@dataclass
class Problems:
    """What is wrong with a data set.

    Where all of it is more than one line may hold, the first of those with the same way out are told, and how many more
    there are.

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
            self.add(str(error))

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
        if len(self.found) == 1:
            return DataError(": ".join(filter(None, self.found[0])))
        most = _MOST
        while len(self._numbered(most)) > LONGEST_TEXT and most > 1:
            most -= 1
        return DataError(self._numbered(most))

    def _numbered(self, most: int) -> str:
        """Return all problems as a line; of those with one way out, the first ones, and how many more there are."""
        place = re.escape(self.place)
        own = re.compile(rf"^{place} | of {place}(?!\[)")  # dataset['North'] is part of dataset
        lines, of, more = list[str](), dict[str, list[str]](), Counter[str]()
        for what, way in self.found:
            numbers = of.setdefault(way, [])
            if len(numbers) == most:
                more[way] += 1
                continue
            numbers.append(f"({len(lines) + 1})")
            lines.append(f"{numbers[-1]} {own.sub('', what)}")
        lines += [f"and {more['']} more"] * ("" in more)
        said = {way: ", ".join(numbers) + f" and {more[way]} more" * (way in more) for way, numbers in of.items()}
        ways = "; ".join(f"{whose} {way}" for way, whose in said.items() if way)
        return f"{self.place} has {len(self.found)} problems: {'; '.join(lines)}" + f"; ways out: {ways}" * bool(ways)
