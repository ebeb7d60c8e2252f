"""What a client half works with on its node: run config, data, model and state store."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.supercore import log
from safetensors.torch import load, save
from torch import nn

from hetfl_flwr.algorithms import resolve_models
from hetfl_flwr.config import BUNDLED, RunConfig, Value, for_node, to_toml
from hetfl_flwr.data import ClientData, DataSpec, Samples, load_client_data
from hetfl_flwr.data.samples import Arrays as Rows
from hetfl_flwr.errors import ConfigError, DamagedError, plain, private
from hetfl_flwr.files import check_seal, header, read_file, read_header, replace_file, seal
from hetfl_flwr.learning.lockstep import LARGEST_GROUP, current, stackable
from hetfl_flwr.models import ZOO, SplitModel, build_model, check_pretrained, deal, mixed
from hetfl_flwr.node.allocation import keep_freed_memory
from hetfl_flwr.node.pool import Pool, SeedStore
from hetfl_flwr.node.state import (
    ClientState,
    ContextStore,
    FileStore,
    MemoryStore,
    ResidentContext,
    Stamp,
    StateStore,
    decode,
    prune,
)
from hetfl_flwr.node.threads import check_threads
from hetfl_flwr.wire.privacy import simulated
from hetfl_flwr.wire.spec import Arrays


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
        The model with its initial weights, the same in each round, until `KnowledgeClient` puts the saved ones in; or,
        `restored`, with these.
    data : ClientData
        Training, validation and test samples; which of the training samples are public.
    seeds : SeedStore
        Where the public rows of others lie.
    restored : bool
        Whether the model has the weights that were saved after the last round, not the initial ones.
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
    restored: bool = False

    @classmethod
    def from_context(cls, context: Context) -> "Node":
        """Build the node's surroundings from Flower's Context.

        Raises
        ------
        HetflError
            What is wrong with the config, the data or the model, in one line.
        """
        parts = _surroundings(context)
        torch.set_num_threads(parts["config"].threads)
        resident = _resident_model(**parts)
        return cls(model=resident or _new_model(**parts), restored=resident is not None, **parts)

    @classmethod
    def without_data(cls, context: Context, data: ClientData) -> "Node":
        """Build the node's surroundings around data that say what inputs are and hold none: see `unpack_inputs`."""
        parts = _made(context, data)
        return cls(model=_new_model(**parts), **parts)

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
        return self.store.load(self.stamp, str(self))

    def write_state(self, state: ClientState) -> None:
        """Save what must survive until the next round; in a state folder, with what it takes to read it back."""
        if self.config.state_dir:
            folder = run_folder(self.config, self.stamp.run)
            path, inputs = kept_config(folder, self.partition), kept_inputs(folder, self.partition)
            if not path.exists():
                replace_file(path, to_toml(self.config.with_values({"clients": self.partitions}).to_flat()).encode())
            if not inputs.exists():
                replace_file(inputs, pack_inputs(self.data))
        self.store.save(state, self.stamp)

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
        DamagedError
            The state is damaged, and without ``accept-loss``.
        StateError
            It is another model's or algorithm's.
        """
        if not self.config.state_dir or self.store.read() is not None:
            return
        before, stamp = run_store(self.config, run, self.partition), replace(self.stamp, run=run)
        for blob in (before.read(), before.kept()):
            state = self._intact(blob, stamp, before.where)
            if state is not None and state.round <= round:
                self.write_state(state)
                return

    def registered_state(self) -> ClientState | None:
        """Return what was saved last, as `read_state`; with ``accept-loss``, a damaged one is what was kept, or none.

        Raises
        ------
        DamagedError
            The state is damaged, and without ``accept-loss``.
        StateError
            It is another run's, model's or algorithm's.
        """
        state = self._intact(self.store.read(), self.stamp, self.store.where)
        if state is None and self.store.read() is not None:
            state = self._intact(self.store.kept(), self.stamp, self.store.where)
            self.store.forget()
            if state is not None:
                self.write_state(state)
        return state

    def _intact(self, blob: bytes | None, stamp: Stamp, where: str) -> ClientState | None:
        try:
            return None if blob is None else decode(blob, stamp, f"{self}: {where}")
        except DamagedError as error:
            means = f"{error.marked}: it would go on from an older state or its initial weights"
            if not self.config.accept_loss:
                raise DamagedError(f"{means}, which accept-loss = true allows") from None
            log(WARNING, "%s, and this was accepted", plain(means))
            return None

    def prune(self, origin: str = "") -> None:
        """Remove this client's state of old runs from its state folder, as ``state-keep`` says, but not of `origin`."""
        if self.config.state_dir:
            needed = {self.stamp.run, origin} - {""}
            removed = prune(Path(self.config.state_dir), self.partition, self.config.state_keep, needed)
            if removed:
                log(INFO, "state of old runs removed, as state-keep says: %s", ", ".join(removed))

    def __str__(self) -> str:
        """Return how messages call it."""
        return f"client {self.partition} ({self.model_name})"


def _surroundings(context: Context) -> dict[str, Any]:
    """Return what a node has besides its model; where the client lives on in this process, it is made once."""
    if not isinstance(context, ResidentContext):
        return _made(context)
    if not context.surroundings:
        context.surroundings = _made(context)
    return context.surroundings


def _made(context: Context, data: ClientData | None = None) -> dict[str, Any]:
    partition, partitions = _identity(context.node_config)
    config = resolve_models(_with_data(for_node(RunConfig.from_flat(context.run_config), context.node_config)))
    if not isinstance(context, ResidentContext):  # `hetfl run` counts the threads of all its workers
        check_threads(config.threads)
    torch.set_num_threads(config.threads)
    keep_freed_memory()
    data = (data or client_data(config, partition, partitions)).to(_device(config.device))
    if config.pretrained and "model" not in context.node_config:
        check_pretrained(config.models)
    name = deal(config.models, partition)
    return {
        "config": config,
        "partition": partition,
        "partitions": partitions,
        "model_name": name,
        "data": data,
        "store": state_store(config, context),
        "stamp": Stamp(run=str(context.run_id), algorithm=config.algorithm, model=name, partition=partition),
        "seeds": SeedStore(context),
    }


def _new_model(*, config: RunConfig, partition: int, model_name: str, data: ClientData, **rest: object) -> SplitModel:
    """Build a client's model with its initial weights."""
    model = build_model(
        model_name,
        data.spec,
        seed=config.seed,
        scope=(partition,),
        width=config.width,
        pretrained=config.pretrained,
    ).to(_device(config.device))
    mixed(model, config.mixed_precision)
    _check_trainable(model, model_name, len(data.train), partition)
    return model


def _resident_model(
    *, config: RunConfig, model_name: str, data: ClientData, store: StateStore, stamp: Stamp, **rest: object
) -> SplitModel | None:
    """Return a model that this process has already, with a client's saved weights; None where it has saved none.

    All clients of one architecture take turns with it, but for those that run together. Models of the user's own,
    which may keep what no state holds, are built anew.
    """
    if not isinstance(store, MemoryStore) or model_name not in ZOO:
        return None
    state = store.load(stamp, f"client {stamp.partition} ({model_name})")
    saved = state.tensors if state else {}
    weights = {name.removeprefix("model."): saved[name] for name in saved if name.startswith("model.")}
    if not weights:
        return None
    client, kind = current(), (model_name, data.spec, config.width, config.device, config.mixed_precision)
    model, held = resident(*kind)
    if client is not None and stackable(model, config.batched, client.number):
        model, held = resident(*kind, client.slot)
    if [(name, tensor.shape) for name, tensor in weights.items()] != [
        (name, tensor.shape) for name, tensor in held.items()
    ]:
        return None  # a new one is built, and loading it says what does not fit
    for name, tensor in held.items():
        tensor.copy_(weights[name])
    model.zero_grad()
    return model.requires_grad_(True).train()


@lru_cache(maxsize=32 + LARGEST_GROUP)
def resident(
    name: str, spec: DataSpec, width: int, device: str, precision: str, slot: int = 0
) -> tuple[SplitModel, dict[str, torch.Tensor]]:
    """Return this process's model of an architecture, with whatever weights it had last, and its tensors by name.

    Clients that run together have one each, by their `slot`.
    """
    model = mixed(build_model(name, spec, seed=0, width=width).to(_device(device)), precision)
    return model, model.state_dict()


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
        even_tests=config.even_tests,
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
    if isinstance(context, ResidentContext):
        return context.store
    return ContextStore(context, str(context.run_id))


def run_store(config: RunConfig, run: str, partition: int) -> FileStore:
    """Return where a client's state of some run lies on disk."""
    return FileStore(run_folder(config, run), partition)


def run_folder(config: RunConfig, run: str) -> Path:
    """Return the part of a state folder that is a run's."""
    return Path(config.state_dir) / f"run-{run}"


def kept_config(folder: Path, partition: int) -> Path:
    """Return the file beside a client's state that holds its config, ``clients`` being how many there are."""
    return folder / f"client-{partition}.toml"


def kept_inputs(folder: Path, partition: int) -> Path:
    """Return the file beside a client's state that says what its model takes, which its data need not be there for."""
    return folder / f"inputs-{partition}.safetensors"


def pack_inputs(data: ClientData) -> bytes:
    """Write what a client's inputs are, and how they are scaled; none of them."""
    arrays = data.train.arrays
    told = {
        "shape": arrays.spec.shape,
        "classes": arrays.spec.classes,
        "vocabulary": arrays.spec.vocabulary,
        "peak": None if isinstance(arrays.peak, torch.Tensor) else arrays.peak,
        "class names": arrays.class_names,
        "input names": arrays.input_names,
    }
    tensors = {"centre": arrays.centre, "inputs": arrays.inputs[:0]}
    if isinstance(arrays.peak, torch.Tensor):
        tensors["peak"] = arrays.peak
    plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    return seal(save(plain, header("inputs", told)))


def unpack_inputs(path: Path) -> ClientData:
    """Return data without samples from what `pack_inputs` has written.

    Raises
    ------
    DamagedError
        It is not as it was written.
    """
    try:
        blob = read_file(path)
        check_seal(blob)
        told = read_header(blob, "inputs")
    except (OSError, DamagedError) as error:
        raise DamagedError(f"{private(path)}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    tensors = load(blob)
    spec = DataSpec(tuple(told["shape"]), told["classes"], told["vocabulary"])
    arrays = Rows(
        spec,
        tensors["inputs"],
        torch.zeros(0, dtype=torch.int64),
        train_rows=0,
        peak=tensors["peak"] if told["peak"] is None else told["peak"],
        centre=tensors["centre"],
        class_names=tuple(told["class names"]),
        input_names=tuple(told["input names"]),
    )
    none = Samples(arrays, torch.zeros(0, dtype=torch.int64))
    return ClientData(spec, none, none, none)


def _check_trainable(model: nn.Module, name: str, samples: int, partition: int) -> None:
    """Refuse one training sample where batch norm would have to take its deviation."""
    if samples == 1 and any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules()):
        raise ConfigError(
            f"client {partition} has one training sample, and batch norm in its model '{name}' needs two: use fewer "
            "clients, a more even partition or a model without batch norm"
        )


def _with_data(config: RunConfig) -> RunConfig:
    """Return the config with a data set; a node on a machine of its own trains on none that nobody has named."""
    if config.dataset or simulated():
        return config.with_data()
    raise ConfigError(
        "this node has no data set: set dataset in its --node-config, or in the run config for all nodes, such as "
        f"dataset = '{BUNDLED}'"
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
