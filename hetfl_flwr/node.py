"""What a client half works with on its node: run config, data, model and state store."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from torch import nn

from hetfl_flwr.algorithms import models_of, width_of
from hetfl_flwr.config import RunConfig, Value, for_node
from hetfl_flwr.data import ClientData, load_client_data
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.models import SplitModel, build_model, check_pretrained, deal
from hetfl_flwr.payloads import Arrays
from hetfl_flwr.pool import Pool, SeedStore
from hetfl_flwr.state import ClientState, ContextStore, FileStore, Stamp, StateStore, decode, encode


@dataclass(frozen=True)
class Node:
    """One client's surroundings, made anew for each message.

    Parameters
    ----------
    config : RunConfig
        The run config as it holds here.
    partition, partitions : int
        Which client this is, and of how many.
    model_name : str
        Name of the model.
    model : SplitModel
        The model with its initial weights, the same in each round; `KnowledgeClient` puts the saved ones in.
    data : ClientData
        Training, validation and test samples; which of the training samples are public.
    seeds : SeedStore
        Where the public rows of others lie.
    """

    config: RunConfig
    partition: int
    partitions: int
    model_name: str
    model: SplitModel
    data: ClientData
    store: StateStore
    stamp: Stamp
    seeds: SeedStore

    @classmethod
    def from_context(cls, context: Context) -> "Node":
        """Build the node's surroundings from Flower's Context.

        Raises
        ------
        HetflError
            What is wrong with the config, the data or the model, in one line.
        """
        partition, partitions = _identity(context.node_config)
        config = for_node(RunConfig.from_flat(context.run_config), context.node_config)
        torch.set_num_threads(config.threads)
        device = _device(config.device)
        data = client_data(config, partition, partitions).to(device)
        models = models_of(config)
        if config.pretrained and "model" not in context.node_config:
            check_pretrained(models)
        name = deal(models, partition)
        model = build_model(
            name,
            data.spec,
            seed=config.seed,
            scope=(partition,),
            width=width_of(config),
            pretrained=config.pretrained,
        ).to(device)
        _check_trainable(model, name, len(data.train), partition)
        stamp = Stamp(run=str(context.run_id), algorithm=config.algorithm, model=name, partition=partition)
        store = state_store(config, context)
        return cls(config, partition, partitions, name, model, data, store, stamp, SeedStore(context))

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.model.head.weight.device

    @property
    def dtype(self) -> str:
        """What the inputs are stored as, such as ``"uint8"``."""
        return str(self.data.public.stored()[0].dtype).removeprefix("torch.")

    @cached_property
    def pool(self) -> Pool:
        """The public rows of all clients that have shared theirs, this one's among them."""
        return self.seeds.pool(self.partition, self.data.public)

    def own_seeds(self, *, labelled: bool) -> Arrays:
        """Return this client's public rows as they are stored, to be shared."""
        inputs, labels = self.data.public.stored()
        arrays = {"inputs": inputs.numpy()}
        return {**arrays, "labels": labels.numpy()} if labelled else arrays

    def keep_seeds(self, record: ArrayRecord) -> int:
        """Check and keep public rows of others; return how many came.

        Raises
        ------
        PayloadError
            They do not fit this client's own.
        """
        return self.seeds.keep(record, self.data.spec, self.dtype, half=self.config.half)

    def read_state(self) -> ClientState | None:
        """Return what was saved after the last round, or None before the first."""
        blob = self.store.read()
        return None if blob is None else decode(blob, self.stamp, f"{self}: {self.store.where}")

    def write_state(self, state: ClientState) -> None:
        """Save what must survive until the next round."""
        self.store.write(encode(state, self.stamp))

    def take_up(self, run: str, round: int) -> None:
        """Go on with the state that this client had in another run after a round, if it is on this node's disk.

        Parameters
        ----------
        run : str
            The other run.
        round : int
            A round after which the server has written a checkpoint.

        Raises
        ------
        StateError
            The state is damaged, or another model's or algorithm's.
        """
        if not self.config.state_dir or self.store.read() is not None:
            return
        before, stamp = run_store(self.config, run, self.partition), replace(self.stamp, run=run)
        for blob in (before.read(), before.kept()):
            if blob is not None and (state := decode(blob, stamp, f"{self}: {before.where}")).round <= round:
                self.write_state(state)
                return

    def __str__(self) -> str:
        """Return how messages call it."""
        return f"client {self.partition} ({self.model_name})"


def client_data(config: RunConfig, partition: int, partitions: int) -> ClientData:
    """Return the rows that a run config gives to one client.

    Raises
    ------
    HetflError
        What is wrong with the config or the data, in one line.
    """
    return load_client_data(
        dataset=config.dataset,
        reading=config.reading,
        partition=config.partition,
        features=config.features,
        partition_id=partition,
        num_partitions=partitions,
        seed=config.seed,
        test=config.test_set,
        validation_fraction=config.validation_fraction,
        test_fraction=config.test_fraction,
        public_fraction=config.public_fraction,
        halved_fraction=config.halved_fraction,
        shared_split=config.shared_split,
        normalize=config.normalize,
    )


def state_store(config: RunConfig, context: Context) -> StateStore:
    """Return where a client's state lies: on disk with ``state-dir`` set (a folder a run), else in its Context."""
    if config.state_dir:
        return run_store(config, str(context.run_id), _identity(context.node_config)[0])
    return ContextStore(context, str(context.run_id))


def run_store(config: RunConfig, run: str, partition: int) -> FileStore:
    """Return where a client's state of some run lies on disk."""
    return FileStore(Path(config.state_dir) / f"run-{run}", partition)


def _check_trainable(model: nn.Module, name: str, samples: int, partition: int) -> None:
    """Refuse one training sample where batch norm would have to take its deviation."""
    if samples == 1 and any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules()):
        raise ConfigError(
            f"client {partition} has one training sample, and batch norm in its model '{name}' needs two: use fewer "
            "clients, a more even partition or a model without batch norm"
        )


def _identity(node_config: Mapping[str, Value]) -> tuple[int, int]:
    values = node_config.get("partition-id"), node_config.get("num-partitions")
    for key, value in zip(("partition-id", "num-partitions"), values, strict=True):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(
                f"this node has no {key}: start it with --node-config 'partition-id=0 num-partitions=4', "
                "each node with an id of its own"
            )
    partition, partitions = int(values[0] or 0), int(values[1] or 0)
    if not 0 <= partition < partitions:
        raise ConfigError(
            f"partition-id = {partition} is outside 0 .. {partitions - 1} (num-partitions = {partitions})"
        )
    return partition, partitions


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= found:
        here = f"the CUDA devices here are 0 .. {found - 1}" if found else "no CUDA device is here"
        raise ConfigError(f"device = {name!r}: {here}; use auto or cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device = 'mps': no Apple GPU is here; use auto or cpu")
    return torch.device(name)
