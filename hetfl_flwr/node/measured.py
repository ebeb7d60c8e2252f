"""What a client was measured with last, beside its state on disk, so that the same can be made of it again."""

from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from hetfl_flwr.common.blobs import pack, read_blob
from hetfl_flwr.common.files import replace_file
from hetfl_flwr.errors import StateError
from hetfl_flwr.wire.spec import Arrays

MEASURED = "measured"
"""The kind of file that this is."""


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
        content = pack(MEASURED, {"predictor": self.digest, "round": self.round}, self.download)
        try:
            replace_file(path, content)
        except OSError as error:
            raise StateError(f"{path}: cannot be written: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> "Measured | None":
        """Return what was written; None where nothing was. Raises DamagedError as `read_blob`."""
        if not path.exists():
            return None
        blob = read_blob(path, MEASURED)
        return cls(blob.arrays, blob.values["predictor"], blob.values["round"])


def digest_of(model: nn.Module) -> str:
    """Return a digest of a module's weights and buffers."""
    digest = blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
