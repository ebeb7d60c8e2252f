"""Human activity recognition with smartphones as the UCI archive keeps it: a text file a channel.

Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN 2013.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetfl_flwr.data.folders import SIGNALS
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.npz import table_of
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

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
    names = _read(folder / "activity_labels.txt").to_numpy()[:, 1]
    splits: dict[str, Frame] = {}
    for split in ("train", "test"):
        here = folder / split
        if here.is_dir():
            signal = [_read(here / SIGNALS / f"{channel}_{split}.txt", np.float32) for channel in CHANNELS]
            if len({channel.shape for channel in signal}) > 1:
                raise DataError(f"the files in '{here / SIGNALS}' differ in rows or length")
            arrays = {
                "signal": np.stack(signal, axis=1),
                "activity": _read(here / f"y_{split}.txt", np.int64).to_numpy() - 1,
                "person": _read(here / f"subject_{split}.txt", np.int64).to_numpy(),
            }
            splits[split] = Frame(table_of(arrays, f"'{here}'"), {"activity": tuple(map(str.lower, names))})
    return splits


def _read(path: Path, dtype: Any = None) -> "DataFrame":
    """Return the cells of a text file: a row a line, with blanks between."""
    from pandas import read_csv

    try:
        return read_csv(path, sep=r"\s+", header=None, dtype=dtype)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(f"cannot read '{path}': {why}") from None
