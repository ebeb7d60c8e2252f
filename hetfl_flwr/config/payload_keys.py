"""Keys of what leaves a client: its precision, clipping and noise."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config.keys import PER_NODE, Keys, kebab


def _noise(multiplier: float, info: ValidationInfo) -> float:
    key = kebab(info.field_name or "")
    norm = key.replace("noise-multiplier", "clipping-norm")
    if multiplier > 0 and info.data.get(norm.replace("-", "_")) == 0:
        raise ConfigError(
            f"{key} = {multiplier:g} needs {norm} above 0: the noise's standard deviation is {key} times {norm}"
        )
    return multiplier


class PayloadKeys(Keys):
    """How uploads and public samples are rounded, clipped and made noisy."""

    payload_precision: Annotated[
        Literal["full", "half"],
        Field(
            description="full: float32 is sent unchanged. half: sent as float16 in both directions, in half the bytes."
        ),
    ] = "full"
    clipping_norm: Annotated[
        float,
        PER_NODE,
        Field(
            ge=0,
            le=1e30,
            description="L2 norm to which each upload of a client, or its change of weights, is clipped. 0: off.",
        ),
    ] = 0.0
    noise_multiplier: Annotated[
        float,
        PER_NODE,
        AfterValidator(_noise),
        Field(
            ge=0,
            le=1e30,
            description="Standard deviation of the Gaussian noise on each upload, as a multiple of clipping-norm. 0: "
            "none.",
        ),
    ] = 0.0
    public_clipping_norm: Annotated[
        float,
        PER_NODE,
        Field(
            ge=0,
            le=1e30,
            description="L2 norm, in stored values, to which each shared public sample is clipped. 0: off.",
        ),
    ] = 0.0
    public_noise_multiplier: Annotated[
        float,
        PER_NODE,
        AfterValidator(_noise),
        Field(
            ge=0,
            le=1e30,
            description="Standard deviation of the Gaussian noise on each public sample, as a multiple of "
            "public-clipping-norm. 0: none.",
        ),
    ] = 0.0
    noise_source: Annotated[
        Literal["auto", "seed", "system"],
        PER_NODE,
        Field(
            description="Source of the noise. seed: the run's seed, so that whoever knows it can subtract the noise; "
            "system: the operating system's entropy; auto: seed where all clients are simulated, system "
            "in a deployment."
        ),
    ] = "auto"

    @property
    def half(self) -> bool:
        """Whether payloads travel in half precision."""
        return self.payload_precision == "half"
