"""Keys of the machine that a client runs on."""

from typing import Annotated, Literal

from pydantic import Field

from hetfl_flwr.config.keys import PER_NODE, Keys


class MachineKeys(Keys):
    """Devices, threads and arithmetic."""

    device: Annotated[
        str,
        PER_NODE,
        Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?|mps)$", description="auto, cpu, cuda, cuda:N or mps."),
    ] = "cpu"
    threads: Annotated[
        int,
        PER_NODE,
        Field(
            ge=1,
            le=1024,
            description="Threads of a client's arithmetic. Results are bit-identical only for equal numbers.",
        ),
    ] = 1
    mixed_precision: Annotated[
        Literal["none", "bfloat16"],
        PER_NODE,
        Field(
            description="bfloat16: forward passes run under torch.autocast; weights, losses, gradients and payloads "
            "stay float32. No loss scaling is needed, because its range is float32's. none: float32."
        ),
    ] = "none"
