"""What a run's bits depend on besides its settings: packages, interpreter, processor and this project's code."""

import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("hetfl", "flwr", "torch", "numpy")
"""Packages whose versions every client reports to the server."""

OPTIONAL = ("torchvision", "scipy", "scikit-learn", "pandas", "pillow")
"""Packages that some data sets, models or methods use."""


@cache
def installed() -> dict[str, str]:
    """Return the version of each of `PACKAGES` in this process."""
    return {package: version(package) for package in PACKAGES}


@cache
def environment() -> dict[str, str]:
    """Return what the bits of this process's results depend on, by name.

    Returns
    -------
    dict of str to str
        The versions of `PACKAGES`, and of `OPTIONAL` where they are installed; ``commit``, from a clone of this
        project, with ``-dirty`` where a Python file differs from it; ``python``; ``processor``, the architecture, the
        vector instructions that torch uses and, on Linux, the maker: its libraries choose their code by these.

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
    found["processor"] = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {_maker()}".strip()
    return found


def _maker() -> str:
    """Return the maker of this machine's processor where Linux names it; else an empty text."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("vendor_id"):
                return line.rpartition(":")[2].strip()
    return ""


def commit(root: Path) -> str:
    """Return the commit of a clone; empty where the folder is not a clone, or git is not installed."""
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
    """Return in words how two environments differ; empty where they are equal.

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
