"""Where a client computes."""

import torch

from hetfl_flwr.errors import ConfigError


def find_device(name: str) -> torch.device:
    """Return the device that ``device`` names; ``"auto"`` takes an accelerator where there is one.

    Raises
    ------
    ConfigError
        It is not here: says which are.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= found:
        here = f"the CUDA devices here are 0 .. {found - 1}" if found else "no CUDA device is here"
        raise ConfigError(f"device = {name!r}: {here}; use auto or cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device = 'mps': no Apple GPU is here; use auto or cpu")
    return torch.device(name)
