"""Measure what a round of training costs a client: time, memory, floating-point operations and energy.

Costs that cannot be measured are left out, such as device memory without an accelerator, or energy if neither NVML
nor RAPL can be read.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from importlib import import_module
from math import inf, prod
from pathlib import Path
from time import perf_counter, process_time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from hetfl_flwr.wire.cost_metrics import CPU_SECONDS, DEVICE_MEMORY, FLOPS, JOULES, MEMORY, WALL_SECONDS

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

PEAK, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
"""Files in which Linux reports the peak memory of this process, and through which the peak is reset."""

POWERCAP = Path("/sys/class/powercap")
"""Folder in which Linux reports the energy of the processors (RAPL) in microjoules, if the user may read it."""


class Meter:
    """Context manager that measures the `wanted` costs of its body, a subset of `hetfl_flwr.config.COSTS`.

    On exit, `costs` holds ``cpu-seconds``, ``wall-seconds``, ``peak-memory`` (bytes of the process: on Linux since the
    meter was entered, elsewhere since the process started), ``device-memory`` (bytes on a CUDA device), ``flops`` and
    ``joules``. `operation_counter` slows small networks down: seconds and joules then include the counting.
    """

    def __init__(self, wanted: frozenset[str], device: torch.device) -> None:
        self.costs: dict[str, float] = {}
        self._wanted, self._device = wanted, device
        self._readings: list[Callable[[], Mapping[str, float]]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start measuring."""
        self._synchronize()
        begin = {"flops": self._flops, "memory": self._memory, "energy": self._energy, "time": self._time}
        self._readings = [start() for cost, start in begin.items() if cost in self._wanted]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop measuring and set `costs`."""
        try:
            self._synchronize()
            for reading in reversed(self._readings):
                with suppress(OSError, ValueError):  # a counter that can no longer be read is left out
                    self.costs |= reading()
        finally:
            self._stack.close()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _time(self) -> Callable[[], Mapping[str, float]]:
        wall, used = perf_counter(), process_time()
        return lambda: {WALL_SECONDS: perf_counter() - wall, CPU_SECONDS: process_time() - used}

    def _memory(self) -> Callable[[], Mapping[str, float]]:
        with suppress(OSError):
            RESET.write_text("5")
        if self._device.type != "cuda":
            return lambda: {MEMORY: float(_peak())}
        torch.cuda.reset_peak_memory_stats(self._device)
        return lambda: {
            MEMORY: float(_peak()),
            DEVICE_MEMORY: float(torch.cuda.max_memory_allocated(self._device)),
        }

    def _flops(self) -> Callable[[], Mapping[str, float]]:
        counter = self._stack.enter_context(operation_counter())
        return lambda: {FLOPS: float(counter.get_total_flops())}

    def _energy(self) -> Callable[[], Mapping[str, float]]:
        sources = _joules(self._device)
        before = [(read, read(), whole) for read, whole in sources]
        return lambda: {JOULES: sum((read() - start) % whole for read, start, whole in before)} if before else {}


def operation_counter() -> "FlopCounterMode":
    """Return PyTorch's counter of the floating-point operations of matrix products, convolutions and attention.

    Forward and backward count. PyTorch has no formulas for the operators that compute LSTM layers, on CUDA also other
    recurrent layers, in one piece, nor for attention on the CPU; they are added.
    """
    from torch.utils import flop_counter  # imports triton

    aten, torchs = torch.ops.aten, cast(Any, flop_counter)
    forwards, backwards = torchs.sdpa_flop_count, torchs.sdpa_backward_flop_count
    formulas: dict[Any, Callable[..., Any]] = {
        aten.mkldnn_rnn_layer: lambda inputs, *weights, **_: _recurrent(inputs, weights[:2]),
        aten.mkldnn_rnn_layer_backward: lambda inputs, *weights, **_: 2 * _recurrent(inputs, weights[:2]),
        aten._cudnn_rnn: lambda inputs, weights, *_, **__: _recurrent(inputs, weights),
        aten._cudnn_rnn_backward: lambda inputs, weights, *_, **__: 2 * _recurrent(inputs, weights),
        aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: forwards(*shapes[:3]),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: backwards(*shapes[:4]),
    }
    return flop_counter.FlopCounterMode(display=False, custom_mapping=formulas)


def _recurrent(inputs: Sequence[int], weights: Iterable[Sequence[int]]) -> int:
    """Return the operations of the forward pass, from shapes: each step multiplies with every matrix of weights."""
    return 2 * prod(inputs[:-1]) * sum(prod(shape) for shape in weights if len(shape) == 2)


def _peak() -> int:
    """Return the peak resident memory of this process, in bytes."""
    with suppress(OSError):
        lines = PEAK.read_text().splitlines()
        if kilobytes := [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]:
            return 1024 * kilobytes[0]
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


@cache
def _joules(device: torch.device) -> list[tuple[Callable[[], float], float]]:
    """Return functions that read the energy counters in joules, with the value at which each counter wraps around.

    They cover the processors and the model's device, and include everything that runs on these.
    """
    packages = [path for path in sorted(POWERCAP.glob("intel-rapl:*")) if path.name.count(":") == 1]
    sources = [(partial(_rapl, path / "energy_uj"), partial(_rapl, path / "max_energy_range_uj")) for path in packages]
    found = [(read, whole) for read, most in sources if _try(read) is not None and (whole := _try(most))]
    return found + [(read, inf) for read in (_nvml(device) if device.type == "cuda" else []) if _try(read) is not None]


def _rapl(counter: Path) -> float:
    return int(counter.read_text()) / 1e6


def _try(source: Callable[[], float]) -> float | None:
    try:
        return source()
    except Exception:  # no permission, or not supported by the device
        return None


def _nvml(device: torch.device) -> list[Callable[[], float]]:
    """Return a function that reads an NVIDIA device's energy counter, if the package pynvml is installed."""
    try:
        library: Any = import_module("pynvml")
    except ImportError:
        return []
    with suppress(library.NVMLError):
        library.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = library.nvmlDeviceGetHandleByUUID(uuid.encode())
        return [lambda: library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3]
    return []
