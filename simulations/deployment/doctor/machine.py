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

import psutil
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hetfl_flwr.common.versions import PACKAGES
from simulations.deployment.doctor.finding import Fault, Finding, State, check, fault_of
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


def examine_machine(state_dir: Path | None, key: Path | None, *, insecure: bool) -> Iterator[Finding]:
    """Yield what is found on this machine itself.

    Parameters
    ----------
    state_dir : Path, optional
        The node's ``state-dir``, which need not be there yet. By default the working directory.
    key : Path, optional
        The node's private key.
    insecure : bool
        Whether the node is to connect without TLS.
    """
    yield check_python()
    yield check_packages()
    torch = check_torch()
    yield from [torch] if torch.state is State.FAILURE else check_devices()
    yield check_memory()
    yield check_disk(state_dir or Path.cwd())
    yield check_key(key, insecure=insecure)


@check("Python")
def check_python() -> str:
    """Check the version of Python against the one that this project requires."""
    required = metadata(PROJECT)["Requires-Python"]
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if not SpecifierSet(required).contains(platform.python_version(), prereleases=True):
        raise Fault(f"{text}, required is {required}", f"make the virtual environment with a Python {required}")
    return text


@check("packages")
def check_packages() -> str:
    """Check that each required package, Flower among them, is here in a version that will do."""
    lacking = [
        each
        for each in required_packages()
        if (found := found_version(each.name)) == MISSING or not each.specifier.contains(found, prereleases=True)
    ]
    here = ", ".join(f"{name} {found_version(name)}" for name in PACKAGES)
    if lacking:
        said = (f"{each.name} is {found_version(each.name)}, required is {each.specifier or 'any'}" for each in lacking)
        names = " ".join(f"'{each.name}{each.specifier}'" for each in lacking)
        raise Fault(f"{here}; {'; '.join(said)}", f"{sys.executable} -m pip install {names}")
    return here


def required_packages() -> list[Requirement]:
    """Return what this project requires here, without its extras."""
    every = map(Requirement, requires(PROJECT) or [])
    return [each for each in every if each.marker is None or each.marker.evaluate()]


def found_version(package: str) -> str:
    """Return the version of a package in this environment; ``missing`` where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


@check("torch")
def check_torch() -> str:
    """Let torch compute in a process of its own."""
    trial = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, text=True, check=False)
    if trial.returncode < 0:  # it is built for another processor
        raise Fault(f"torch ends Python: {signal.strsignal(-trial.returncode)}", _OTHER_TORCH)
    if trial.returncode:
        reason = trial.stderr.strip().rpartition("\n")[2]
        raise Fault(f"torch cannot be imported: {reason}", _OTHER_TORCH)
    return "multiplies matrices"


def check_devices() -> Iterator[Finding]:
    """Check each device on which torch can compute, by a product of matrices; without an accelerator, the processor."""
    import torch

    names = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    names += ["mps"] * torch.backends.mps.is_available()
    for name in names:
        yield check(f"accelerator {name}")(_multiply)(name)
    if not names:
        yield check("processor")(_multiply)("cpu")
    jetson = jetson_release()
    nvidia = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if not names and (jetson or nvidia):
        seen = f"Jetson {jetson} is" if jetson else "an NVIDIA GPU is"
        text = f"{seen} here, but torch {torch.__version__} is built for CUDA {torch.version.cuda or '(none)'}"
        fix = f"{_OTHER_TORCH}; on a Jetson, let the node's user into the group video, too"
        yield Finding("accelerator", State.WARNING, f"{text} and cannot use it", fix)


def _multiply(device: str) -> str:
    import torch

    fix = f'{_OTHER_TORCH}; until then the node trains with device="cpu"'
    try:
        text, one = _described(device), torch.ones(_SIDE, _SIDE, device=device)
        right = bool(((one @ one) == _SIDE).all())
    except RuntimeError as error:  # a driver that is too old, a GPU for which torch has no kernels, no memory
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise Fault(f"{device} cannot multiply matrices: {reason}", fix) from None
    if not right:
        raise Fault(f"{text}; a product of matrices is wrong", fix)
    return f"{text}; multiplies matrices"


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


@check("memory")
def check_memory() -> str:
    """Check the free memory against what small clients take."""
    free = free_memory()
    text = f"{byte_size(free)} free; a small client (LeNet-5) takes {byte_size(MEMORY)}"
    if free < ROOMY:
        fix = "end other programs, raise the MemoryMax of the unit, or train smaller models and batches"
        raise Fault(text, fix, State.FAILURE if free < MEMORY else State.WARNING)
    return text


def free_memory(cgroup: Path = CGROUP) -> int:
    """Return the bytes that a new process can take, within the limit of a container."""
    free: int = psutil.virtual_memory().available
    try:
        limit, used = ((cgroup / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return free if limit == "max" else min(free, max(int(limit) - int(used), 0))
    except (OSError, ValueError):
        return free


@check("state folder")
def check_disk(folder: Path) -> str:
    """Check that a state folder can be written, and that it has room for the runs that are kept.

    Of a folder that is not there yet, the one in which it would be made is checked.
    """
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    fix = "free some of the disk, or name a folder with --state-dir that the node's user can write to"
    with fault_of(f"{folder} cannot be written", fix):
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0")
        free = shutil.disk_usage(there).free
    text = f"{folder} can be written, {byte_size(free)} free"
    if free < RUNS_KEPT * MODEL_STATE:
        text += f"; ResNet-18 with Adam takes {byte_size(MODEL_STATE)} a run, and state-keep = {RUNS_KEPT} runs stay"
        fix = "free some of the disk, name another --state-dir, or set a smaller state-keep"
        raise Fault(text, fix, State.FAILURE if free < MODEL_STATE else State.WARNING)
    return text


@check("private key")
def check_key(path: Path | None, *, insecure: bool = False) -> str:
    """Check a node's private key as Flower reads it, and that it is readable by its owner alone.

    Parameters
    ----------
    path : Path, optional
        What ``flower-supernode`` takes as ``--auth-supernode-private-key``.
    insecure : bool
        Whether the node is to connect without TLS, which Flower refuses of a node with a key.
    """
    if path is None:
        raise Fault("no --key is given", state=State.NOT_CHECKED)
    with fault_of(f"{path} cannot be read", "name the file with --key, and run this as the node's user"):
        content, mode = path.read_bytes(), path.stat().st_mode & 0o777
    try:
        key = load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        text = f"{path} is no private key of an elliptic curve in OpenSSH's format without a passphrase"
        raise Fault(text, "take node-K, not node-K.pub, of `hetfl keys`")
    if mode & 0o077:
        text = f"{path} has mode {mode:04o}: others than its owner can read or write it"
        raise Fault(text, f"chmod 600 {quote(str(path))}")
    if insecure:
        text = "Flower refuses a node that has a key but connects without TLS"
        raise Fault(text, "drop --insecure and name --root-certificates, or drop --key")
    return f"{path} has mode {mode:04o}, curve {key.curve.name}"
