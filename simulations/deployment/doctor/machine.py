"""The machine itself: Python, packages, memory, disk, and the node's private key."""

import errno
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from shlex import quote

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hetfl_flwr.common.versions import PACKAGES
from hetfl_flwr.runs.figures.tables import byte_size
from simulations.deployment.doctor.finding import Finding, State

PROJECT = "hetfl"
"""The package whose requirements must be met."""

MISSING = "missing"

MEMORY, ROOMY = 1.05e9, 1.5e9
"""Bytes: the peak of a run of LeNet-5 on MNIST, and the most that such a run may take."""

MODEL_STATE, RUNS_KEPT = 134e6, 20
"""Bytes of a client with ResNet-18 and Adam, and the runs that ``state-keep`` leaves in a folder."""

_TRIAL = "import torch; one = torch.ones(256, 256); one @ one"
"""Run in a process of its own: a torch that was built for newer processors ends it by a signal."""

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux says how much memory a container or a unit may take."""


def examine_machine(state_dir: Path | None) -> Iterator[Finding]:
    """Yield what is found on this machine itself.

    Parameters
    ----------
    state_dir : Path, optional
        The node's ``state-dir``, which need not be there yet. By default the working directory.
    """
    yield check_python(platform.python_version(), metadata(PROJECT)["Requires-Python"])
    yield check_packages(requires(PROJECT) or [])
    yield from _examine_devices()
    yield check_memory(free_memory())
    yield check_disk(state_dir or Path.cwd())


def check_python(found: str, required: str) -> Finding:
    """Check the version of Python against the one that this project requires, such as ``>=3.11``."""
    text = f"Python {found} on {platform.system()} {platform.machine()}"
    if SpecifierSet(required).contains(found, prereleases=True):
        return Finding("Python", State.OK, text)
    fix = f"make the virtual environment with a Python {required}"
    return Finding("Python", State.FAILURE, f"{text}, required is {required}", fix)


def check_packages(requirements: list[str]) -> Finding:
    """Check that each required package, Flower among them, is here in a version that will do."""
    needed = [each for each in map(Requirement, requirements) if each.marker is None or each.marker.evaluate()]
    lacking = {str(each.name): text for each in needed if (text := _unmet(each))}
    here = ", ".join(f"{name} {found_version(name)}" for name in PACKAGES)
    if not lacking:
        return Finding("packages", State.OK, here)
    wanted = " ".join(f"'{each.name}{each.specifier}'" for each in needed if each.name in lacking)
    fix = f"{sys.executable} -m pip install {wanted}"
    return Finding("packages", State.FAILURE, f"{here}; {'; '.join(lacking.values())}", fix)


def found_version(package: str) -> str:
    """Return the version of a package in this environment; ``missing`` where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


def _unmet(required: Requirement) -> str:
    found = found_version(required.name)
    if found == MISSING:
        return f"{required.name} is missing"
    if required.specifier.contains(found, prereleases=True):
        return ""
    return f"{required.name} is {found}, required is {required.specifier}"


def _examine_devices() -> Iterator[Finding]:
    if "torch" not in sys.modules and (ended := _fatal_signal()):
        text = f"torch ends Python: {ended}"
        yield Finding(
            "torch", State.FAILURE, text, "install another version of torch: this one is not for this processor"
        )
        return
    try:
        import_module("torch")
    except (ImportError, OSError) as error:  # not here; or for another processor, or without its libraries
        reason = str(error).partition("\n")[0]
        fix = "install a torch for this system and processor: https://pytorch.org, or NVIDIA's wheel for a JetPack"
        yield Finding("torch", State.FAILURE, f"torch cannot be imported: {reason}", fix)
        return
    from simulations.deployment.doctor.devices import check_devices

    yield from check_devices()


def _fatal_signal() -> str:
    """Return the signal that ends a process which uses torch, in words; empty where none does."""
    status = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, check=False).returncode
    return signal.strsignal(-status) or f"signal {-status}" if status < 0 else ""


def check_memory(free: int | None) -> Finding:
    """Check the free memory, in bytes, against what small clients take; None where the system does not tell."""
    if free is None:
        return Finding("memory", State.NOT_CHECKED, f"{platform.system()} does not tell how much is free")
    text = f"{byte_size(free)} free; a small client (LeNet-5) takes {byte_size(MEMORY)}"
    fix = "end other programs, raise the MemoryMax of the unit, or train smaller models and batches"
    state = State.FAILURE if free < MEMORY else State.WARNING if free < ROOMY else State.OK
    return Finding("memory", state, text, "" if state is State.OK else fix)


def free_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int | None:
    """Return the bytes that a new process can take, within the limit of a container; None without ``/proc``."""
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit, used = ((cgroup / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return free if limit == "max" else min(free, max(int(limit) - int(used), 0))
    except (OSError, ValueError):
        return free


def check_disk(folder: Path) -> Finding:
    """Check that a state folder can be written, and that it has room for the runs that are kept.

    Of a folder that is not there yet, the one in which it would be made is checked.
    """
    name = "state folder"
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0")
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Finding(
            name, State.FAILURE, f"{folder} cannot be written: {error.strerror}", _writable(there, error.errno)
        )
    text = f"{folder} can be written, {byte_size(free)} free"
    if free >= RUNS_KEPT * MODEL_STATE:
        return Finding(name, State.OK, text)
    state = State.FAILURE if free < MODEL_STATE else State.WARNING
    text += f"; ResNet-18 with Adam takes {byte_size(MODEL_STATE)} a run, and state-keep = {RUNS_KEPT} runs stay"
    return Finding(name, state, text, "free some of the disk, name another --state-dir, or set a smaller state-keep")


def _writable(folder: Path, reason: int | None) -> str:
    if reason in (errno.ENOSPC, errno.EDQUOT):
        return "free some of the disk, or name another --state-dir"
    fix = "name a folder with --state-dir that the node's user can write to"
    return f"{fix}, or give {folder} to that user by chown" if reason in (errno.EACCES, errno.EPERM) else fix


def check_key(path: Path, *, insecure: bool = False) -> Finding:
    """Check a node's private key as Flower reads it, and that it is readable by its owner alone.

    Parameters
    ----------
    path : Path
        What ``flower-supernode`` takes as ``--auth-supernode-private-key``.
    insecure : bool
        Whether the node is to connect without TLS, which Flower refuses of a node with a key.
    """
    name = "private key"
    try:
        key, mode = load_ssh_private_key(path.read_bytes(), None), path.stat().st_mode & 0o777
    except OSError as error:
        fix = "name the file with --key, and run this as the node's user"
        return Finding(name, State.FAILURE, f"{path} cannot be read: {error.strerror}", fix)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        text = f"{path} is no private key of an elliptic curve in OpenSSH's format without a passphrase"
        return Finding(name, State.FAILURE, text, "take node-K, not node-K.pub, of `hetfl keys`")
    if mode & 0o077:
        text = f"{path} has mode {mode:04o}: others than its owner can read or write it"
        return Finding(name, State.FAILURE, text, f"chmod 600 {quote(str(path))}")
    if insecure:
        text = "Flower refuses a node that has a key but connects without TLS"
        return Finding(name, State.FAILURE, text, "drop --insecure and name --root-certificates, or drop --key")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return Finding(name, State.OK, f"{path} has mode {mode:04o}, curve {key.curve.name}, public half ...{public[-12:]}")
