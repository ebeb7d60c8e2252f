"""Packages, interpreter, processor and this project's commit, which a run's results depend on besides its settings."""

import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("hetfl", "flwr", "torch", "numpy")
"""The packages whose versions each client reports to the server."""

OPTIONAL = ("torchvision", "scipy", "scikit-learn", "pandas", "pillow")
"""Packages that some data sets, models or methods use."""


@cache
def installed() -> dict[str, str]:
    """Return the version of each of `PACKAGES` in this process."""
    return {package: version(package) for package in PACKAGES}


@cache
def environment() -> dict[str, str]:
    """Return what this process's results depend on, bit for bit.

    These are the versions of `PACKAGES` and of installed `OPTIONAL` packages; ``commit`` in a clone of this project,
    with ``-dirty`` if a Python file differs from it; ``python``; and ``processor``: architecture, the vector
    instructions that PyTorch uses and, on Linux, the vendor, because PyTorch's libraries select their code by these.

    Examples
    --------
    >>> environment()["torch"] == installed()["torch"]
    True
    """
    import torch  # slow to import

    found = dict(installed())
    for package in OPTIONAL:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    if made := commit(Path(__file__).parents[2]):
        found["commit"] = made
    found["python"] = platform.python_version()
    found["processor"] = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {_vendor()}".strip()
    return found


def _vendor() -> str:
    """Return the vendor of this machine's processor as named by Linux, or an empty string."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("vendor_id"):
                return line.rpartition(":")[2].strip()
    return ""


def commit(root: Path) -> str:
    """Return the commit of a clone; empty if the folder is not a clone or git is not installed."""
    if not (root / ".git").exists():
        return ""
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py"], capture_output=True, check=False)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + "-dirty" * (changes.returncode == 1)


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Describe how two environments differ; empty if they are equal.

    Examples
    --------
    >>> changed({"torch": "2.13.0", "numpy": "2.4.6"}, {"torch": "2.14.1", "numpy": "2.4.6"})
    'torch 2.13.0 before, 2.14.1 now'
    """
    return "; ".join(
        f"{name} {before.get(name, 'none')} before, {now.get(name, 'none')} now"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    )
