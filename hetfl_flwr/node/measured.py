"""What a client was measured with last, beside its state on disk, so that the same can be made of it again."""

from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import nn

from hetfl_flwr.common.errors import DamagedError, StateError
from hetfl_flwr.common.files import header, read_header, read_sealed, replace_file, seal
from hetfl_flwr.wire.spec import Arrays


class Measured(NamedTuple):
    """A measurement.

    Parameters
    ----------
    download : mapping of str to array
        What the server sent for it.
    digest : str
        Of the weights and buffers of what predicted.
    round : int
        The round that the client's state was of.
    """

    download: Arrays
    digest: str
    round: int

    def write(self, path: Path) -> None:
        """Write it, in one step.

        Raises
        ------
        StateError
            It cannot be written.
        """
        own = {"predictor": self.digest, "round": self.round, "names": list(self.download)}
        arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in self.download.items()}
        try:
            replace_file(path, seal(save(arrays, header("measured", own))))
        except OSError as error:
            raise StateError(f"{path}: cannot be written: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> "Measured | None":
        """Return what was written; None where nothing was.

        Raises
        ------
        DamagedError
            It is not as it was written.
        """
        if not path.exists():
            return None
        try:
            blob = read_sealed(path)
            own, arrays = read_header(blob, "measured"), load(blob)
            return cls({name: arrays[name] for name in own["names"]}, str(own["predictor"]), int(own["round"]))
        except (OSError, DamagedError, KeyError, SafetensorError) as error:
            raise DamagedError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def digest_of(model: nn.Module) -> str:
    """Return a digest of a module's weights and buffers."""
    digest = blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
