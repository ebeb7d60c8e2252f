"""Devices on which torch computes: GPUs of NVIDIA and Apple, Jetsons, processors."""

import os
import shutil
from pathlib import Path

import torch

from hetfl_flwr.runs.figures.tables import byte_size
from simulations.deployment.doctor.finding import Finding, State

JETSON = Path("/etc/nv_tegra_release")
"""Where a Jetson says which release of its system it has."""

_SIDE = 256


def check_devices() -> list[Finding]:
    """Check each device on which torch can compute, by a product of matrices; without an accelerator, the processor."""
    found = [_check_device(torch.device("cuda", number)) for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append(_check_device(torch.device("mps")))
    if found:
        return found
    return [_check_device(torch.device("cpu")), *check_unused(_has_nvidia(), jetson_release())]


def check_unused(nvidia: bool, jetson: str) -> list[Finding]:
    """Warn of a GPU that torch cannot use.

    Parameters
    ----------
    nvidia : bool
        Whether the system has an NVIDIA GPU.
    jetson : str
        The release of a Jetson; empty on any other machine.
    """
    if jetson:
        fix = "install NVIDIA's own wheel of torch for this JetPack, and let the node's user into the group video"
        return [Finding("accelerator", State.WARNING, f"Jetson {jetson}: torch {torch.__version__} has no CUDA", fix)]
    if nvidia:
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        fix = (
            "update the driver, or install a torch that fits it"
            if torch.version.cuda
            else "install a torch with CUDA: https://pytorch.org"
        )
        text = f"an NVIDIA GPU is here, but torch {torch.__version__}, {built}, cannot use it"
        return [Finding("accelerator", State.WARNING, text, fix)]
    return []


def _check_device(device: torch.device) -> Finding:
    name = "processor" if device.type == "cpu" else f"accelerator {device}"
    try:
        text = _described(device)
        one = torch.ones(_SIDE, _SIDE, device=device)
        right = bool(((one @ one) == _SIDE).all())
    except RuntimeError as error:  # a driver that is too old, a GPU for which torch has no kernels, no memory
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        fix = 'install a torch for this GPU and its driver; until then the node trains with device="cpu"'
        return Finding(name, State.FAILURE, f"{device} cannot multiply matrices: {reason}", fix)
    if right:
        return Finding(name, State.OK, f"{text}; multiplies matrices")
    fix = 'have the hardware checked; until then the node trains with device="cpu"'
    return Finding(name, State.FAILURE, f"{text}; a product of matrices is wrong", fix)


def _described(device: torch.device) -> str:
    if device.type == "cuda":
        has = torch.cuda.get_device_properties(device)
        free, _ = torch.cuda.mem_get_info(device)
        text = f"{has.name}, compute capability {has.major}.{has.minor}, CUDA {torch.version.cuda}"
        jetson = f", Jetson {release}" if (release := jetson_release()) else ""
        return f"{text}, {byte_size(free)} of {byte_size(has.total_memory)} free{jetson}"
    if device.type == "mps":
        return f"Apple GPU (MPS), {byte_size(torch.mps.recommended_max_memory())} at most"
    return f"{torch.get_num_threads()} threads of {os.cpu_count()} processors"


def _has_nvidia() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def jetson_release(path: Path = JETSON) -> str:
    """Return the release of a Jetson's system, such as ``R36 (release), REVISION: 4.0``; empty on other machines."""
    try:
        first = path.read_text(errors="replace").partition("\n")[0]
    except OSError:
        return ""
    return ", ".join(first.removeprefix("#").strip().split(", ")[:2])
