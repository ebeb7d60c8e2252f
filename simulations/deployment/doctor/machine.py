"""The machine itself: Python, packages, devices on which torch computes, memory, disk, and the node's private key."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from shlex import quote

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hetfl_flwr.common.versions import PACKAGES
from simulations.deployment.doctor.finding import Finding, State
from simulations.reports.terminal import byte_size

PROJECT = "hetfl"
"""The package whose requirements must be met."""

MISSING = "missing"

MEMORY, ROOMY = 1.05e9, 1.5e9
"""Bytes: the peak of a run of LeNet-5 on MNIST, and the most that such a run may take."""

MODEL_STATE, RUNS_KEPT = 134e6, 20
"""Bytes of a client with ResNet-18 and Adam, and the runs that ``state-keep`` leaves in a folder."""

_SIDE = 256
_TRIAL = f"import torch; one = torch.ones({_SIDE}, {_SIDE}); one @ one"
"""Run in a process of its own: a torch that was built for newer processors ends it by a signal."""

_OTHER_TORCH = "install a torch for this system, processor and driver: https://pytorch.org, or NVIDIA's for a JetPack"

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux says how much memory a container or a unit may take."""

JETSON = Path("/etc/nv_tegra_release")
"""Where a Jetson says which release of its system it has."""


def examine_machine(state_dir: Path | None) -> Iterator[Finding]:
    """Yield what is found on this machine itself.

    Parameters
    ----------
    state_dir : Path, optional
        The node's ``state-dir``, which need not be there yet. By default the working directory.
    """
    yield check_python(platform.python_version(), metadata(PROJECT)["Requires-Python"])
    yield check_packages(requires(PROJECT) or [])
    yield from _examine_torch()
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
    lacking = [
        each
        for each in needed
        if (found := found_version(each.name)) == MISSING or not each.specifier.contains(found, prereleases=True)
    ]
    here = ", ".join(f"{name} {found_version(name)}" for name in PACKAGES)
    if not lacking:
        return Finding("packages", State.OK, here)
    fix = f"{sys.executable} -m pip install " + " ".join(f"'{each.name}{each.specifier}'" for each in lacking)
    said = (f"{each.name} is {found_version(each.name)}, required is {each.specifier or 'any'}" for each in lacking)
    return Finding("packages", State.FAILURE, f"{here}; {'; '.join(said)}", fix)


def found_version(package: str) -> str:
    """Return the version of a package in this environment; ``missing`` where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


def _examine_torch() -> Iterator[Finding]:
    """Let torch compute in a process of its own; if it can, check each device."""
    trial = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, text=True, check=False)
    if trial.returncode == 0:
        yield from check_devices()
    elif trial.returncode < 0:  # it is built for another processor
        name = signal.strsignal(-trial.returncode) or f"signal {-trial.returncode}"
        yield Finding("torch", State.FAILURE, f"torch ends Python: {name}", _OTHER_TORCH)
    else:
        reason = trial.stderr.strip().rpartition("\n")[2]
        yield Finding("torch", State.FAILURE, f"torch cannot be imported: {reason}", _OTHER_TORCH)


def check_devices() -> Iterator[Finding]:
    """Check each device on which torch can compute, by a product of matrices; without an accelerator, the processor."""
    import torch

    names = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    names += ["mps"] * torch.backends.mps.is_available()
    yield from map(_check_device, names or ["cpu"])
    jetson = jetson_release()
    nvidia = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if not names and (jetson or nvidia):
        seen = f"Jetson {jetson} is" if jetson else "an NVIDIA GPU is"
        text = f"{seen} here, but torch {torch.__version__} is built for CUDA {torch.version.cuda or '(none)'}"
        fix = f"{_OTHER_TORCH}; on a Jetson, let the node's user into the group video, too"
        yield Finding("accelerator", State.WARNING, f"{text} and cannot use it", fix)


def _check_device(device: str) -> Finding:
    import torch

    name = "processor" if device == "cpu" else f"accelerator {device}"
    try:
        text = _described(device)
        one = torch.ones(_SIDE, _SIDE, device=device)
        if bool(((one @ one) == _SIDE).all()):
            return Finding(name, State.OK, f"{text}; multiplies matrices")
        text = f"{text}; a product of matrices is wrong"
    except RuntimeError as error:  # a driver that is too old, a GPU for which torch has no kernels, no memory
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        text = f"{device} cannot multiply matrices: {reason}"
    return Finding(name, State.FAILURE, text, f'{_OTHER_TORCH}; until then the node trains with device="cpu"')


def _described(device: str) -> str:
    import torch

    if device == "cpu":
        return f"{torch.get_num_threads()} threads of {os.cpu_count()} processors"
    if device == "mps":
        return f"Apple GPU (MPS), {byte_size(torch.mps.recommended_max_memory())} at most"
    has, (free, _) = torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device)
    text = f"{has.name}, compute capability {has.major}.{has.minor}, CUDA {torch.version.cuda}"
    jetson = f", Jetson {release}" if (release := jetson_release()) else ""
    return f"{text}, {byte_size(free)} of {byte_size(has.total_memory)} free{jetson}"


def jetson_release(path: Path = JETSON) -> str:
    """Return the release of a Jetson's system, such as ``R36 (release), REVISION: 4.0``; empty on other machines."""
    try:
        first = path.read_text(errors="replace").partition("\n")[0]
    except OSError:
        return ""
    return ", ".join(first.removeprefix("#").strip().split(", ")[:2])


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
        fix = "free some of the disk, or name a folder with --state-dir that the node's user can write to"
        return Finding(name, State.FAILURE, f"{folder} cannot be written: {error.strerror}", fix)
    text = f"{folder} can be written, {byte_size(free)} free"
    if free >= RUNS_KEPT * MODEL_STATE:
        return Finding(name, State.OK, text)
    state = State.FAILURE if free < MODEL_STATE else State.WARNING
    text += f"; ResNet-18 with Adam takes {byte_size(MODEL_STATE)} a run, and state-keep = {RUNS_KEPT} runs stay"
    return Finding(name, state, text, "free some of the disk, name another --state-dir, or set a smaller state-keep")


def check_key(path: Path | None, *, insecure: bool = False) -> Finding:
    """Check a node's private key as Flower reads it, and that it is readable by its owner alone.

    Parameters
    ----------
    path : Path, optional
        What ``flower-supernode`` takes as ``--auth-supernode-private-key``.
    insecure : bool
        Whether the node is to connect without TLS, which Flower refuses of a node with a key.
    """
    name = "private key"
    if path is None:
        return Finding(name, State.NOT_CHECKED, "no --key is given")
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
    return Finding(name, State.OK, f"{path} has mode {mode:04o}, curve {key.curve.name}")
