"""Human activity recognition with smartphones as the UCI archive keeps it: a text file a channel.

Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN 2013.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from hetfl_flwr.data.folders import SIGNALS
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.npz import table_of
from hetfl_flwr.errors import DataError

CHANNELS = tuple(f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
"""The channels in their order: body acceleration, angular velocity and total acceleration, of three axes each."""


def read_signals(folder: Path) -> dict[str, Frame]:
    """Return the windows of each split: columns ``signal`` (9 x 128), ``activity`` and ``person``, as numbered there.

    Parameters
    ----------
    folder : Path
        As `signals_folder` gives it.

    Raises
    ------
    DataError
        If a file is not there, or the files of a split differ in their number of rows.
    """
    names = tuple(_names(folder / "activity_labels.txt"))
    splits: dict[str, Frame] = {}
    for split in ("train", "test"):
        if not (folder / split).is_dir():
            continue
        signal = [_numbers(folder / split / SIGNALS / f"{channel}_{split}.txt") for channel in CHANNELS]
        if len({channel.shape for channel in signal}) > 1:
            raise DataError(f"the files in '{folder / split / SIGNALS}' differ in rows or length")
        activity = _numbers(folder / split / f"y_{split}.txt").astype(np.int64) - 1
        person = _numbers(folder / split / f"subject_{split}.txt").astype(np.int64)
        table = table_of(
            {"signal": np.stack(signal, axis=1), "activity": activity, "person": person},
            f"'{folder / split}'",
        )
        splits[split] = Frame(table, {"activity": names})
    return splits


def _names(path: Path) -> list[str]:
    """Return the names of classes in a file that has a number and a name a line."""
    try:
        return path.read_text(encoding="utf-8").lower().split()[1::2]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read '{path}': {getattr(error, 'strerror', None) or error}") from None


def _numbers(path: Path) -> npt.NDArray[np.float32]:
    """Return the numbers of a text file: a row a line, with blanks between."""
    from pandas import read_csv

    try:
        numbers: npt.NDArray[np.float32] = read_csv(path, sep=r"\s+", header=None, dtype=np.float32).to_numpy()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(f"cannot read '{path}': {why}") from None
    return numbers
