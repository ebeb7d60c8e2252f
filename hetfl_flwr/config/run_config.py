"""The run config: all keys in one class.

The same keys serve ``hetfl run --set key=value``, ``flwr run . -c "key=value"``, recipes and a run folder's
``config.toml``. Flower hands them over flat, with an algorithm's own keys under its name (``fedhe.alpha``).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import Field, ValidationError

from hetfl_flwr.common.errors import ConfigError, private, unknown
from hetfl_flwr.config.data_keys import BUNDLED, DataKeys
from hetfl_flwr.config.federation_keys import FederationKeys
from hetfl_flwr.config.keys import Keys, kebab
from hetfl_flwr.config.machine_keys import MachineKeys
from hetfl_flwr.config.model_keys import FIT, ModelKeys
from hetfl_flwr.config.payload_keys import PayloadKeys
from hetfl_flwr.config.record_keys import RecordKeys, parse_costs
from hetfl_flwr.config.training_keys import TrainingKeys
from hetfl_flwr.config.values import Value, check_values, parse_algorithm_options


class AlgorithmKeys(Keys):
    """The algorithm. Its own keys are `RunConfig.options`."""

    algorithm: Annotated[
        str,
        Field(
            min_length=1,
            description="Algorithm: a name from `hetfl list algorithms`, or package.module for one of your own.",
        ),
    ] = "fedhe"
    algorithm_options: Annotated[
        str,
        Field(
            description="Options of the algorithm without its name, such as 'weight=0.5 kind=cosine', quoted as in a "
            "shell. They override NAME.key. Meant for an algorithm of your own under `flwr run -c`, which "
            "rejects keys that have no default in pyproject.toml."
        ),
    ] = ""


class RunConfig(  # their keys are listed from the last to the first
    RecordKeys, MachineKeys, PayloadKeys, TrainingKeys, FederationKeys, ModelKeys, DataKeys, AlgorithmKeys
):
    """One run, typed and checked."""

    options: Annotated[
        dict[str, Value],
        Field(default_factory=dict, exclude=True, description="Options of the algorithms, as name.key."),
    ]

    @classmethod
    def from_flat(cls, values: Mapping[str, Value]) -> "RunConfig":
        """Check the flat key-value pairs that Flower or the command line hands over.

        Raises
        ------
        ConfigError
            One line that names the key, and the nearest valid one where it is unknown.
        """
        check_values(values)
        config = _from_items(tuple(sorted(values.items())), tuple(type(values[key]) for key in sorted(values)))
        return config.model_copy(update={"options": dict(config.options)})  # whoever changes them changes no other's

    @property
    def simulates_time(self) -> bool:
        """Whether a key says how long clients or their links take."""
        return bool(self.client_seconds or self.client_speed or self.client_mbits or self.client_latency)

    @property
    def measured(self) -> frozenset[str]:
        """What of the cost of training is measured: ``costs``, and what a simulated device's speed is of."""
        return parse_costs(self.costs) | ({"flops"} if self.client_speed else frozenset())

    @property
    def candidates(self) -> str:
        """The names of all models that clients may have, as ``models`` lists them."""
        return self.fit_models if self.models == FIT else self.models

    def to_flat(self) -> dict[str, Value]:
        """Return all keys and values, flat, as `from_flat` takes them."""
        return {**self.model_dump(by_alias=True), **self.options}

    def with_values(self, values: Mapping[str, Value]) -> "RunConfig":
        """Return a copy in which some keys have other values."""
        return type(self).from_flat({**self.to_flat(), **values})

    def with_data(self) -> "RunConfig":
        """Return the config of a run whose clients are all simulated: with `BUNDLED` where it names no data set."""
        return self if self.dataset else self.with_values({"dataset": BUNDLED})

    def options_of(self, algorithm: str) -> dict[str, Value]:
        """Return an algorithm's own keys, without its name and with underscores."""
        prefix = f"{algorithm}."
        return {
            key.removeprefix(prefix).replace("-", "_"): value
            for key, value in self.options.items()
            if key.startswith(prefix)
        }


@lru_cache(maxsize=64)
def _from_items(items: tuple[tuple[str, Value], ...], types: tuple[type, ...]) -> RunConfig:
    del types  # part of the cache's key: 1, 1.0 and True are equal to Python, not to a config
    keys = {kebab(name) for name in RunConfig.model_fields} - {"options"}
    general = {key: value for key, value in items if "." not in key}
    for key in general:
        if key not in keys:
            raise ConfigError(unknown("config key", key, keys))
    options = {key: value for key, value in items if "." in key}
    if isinstance(own := general.get("algorithm-options"), str):
        general["algorithm-options"] = ""
        options |= parse_algorithm_options(
            own, str(general.get("algorithm", RunConfig.model_fields["algorithm"].default))
        )
    try:
        return RunConfig.model_validate({**general, "options": options})
    except ValidationError as error:
        first = error.errors()[0]
        key, *rest = map(str, first["loc"])
        reason = first["msg"].lower()
        if key == "options":
            key, reason = rest[0], "expected a finite number, text, true or false"
        value = (general | options)[key]
        shown = private(repr(value)) if isinstance(value, str) else repr(value)
        raise ConfigError(f"{key} = {shown}: {reason}") from None
