"""Loading of trained clients from a run folder or a node's state folder."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path

import torch
from flwr.app import Context, RecordDict

from hetfl_flwr.common.blobs import verified
from hetfl_flwr.common.files import read_file
from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.data import ClientData, DataSpec, Samples
from hetfl_flwr.data import samples as stored
from hetfl_flwr.data.client_data import unlike
from hetfl_flwr.data.domains import data_sets
from hetfl_flwr.data.folders import TABLES, ending, stem
from hetfl_flwr.data.spec import Column
from hetfl_flwr.errors import DamagedError, PayloadError, RunFolderError, StateError
from hetfl_flwr.methods import build_client
from hetfl_flwr.node.holder import BEST, MEASURED, WITH_BEST, Holder, digest_of
from hetfl_flwr.node.node import INPUTS, Node
from hetfl_flwr.node.state import STATE, ClientState, Stamp, decode, state_file
from hetfl_flwr.runs.checkpoint import Checkpoint
from hetfl_flwr.runs.record import CLIENTS_FILE, CONFIG_FILE, name_of, read_clients, read_summary
from hetfl_flwr.runs.settings import config_of
from hetfl_flwr.text import some
from hetfl_flwr.wire.codec import halved, widened
from hetfl_flwr.wire.naming import called, look
from hetfl_flwr.wire.spec import Arrays, under

SHOWN = 10
"""Maximum number of clients or runs in a message."""


def load_client(folder: PathLike[str] | str, client: int | str, *, data: bool = True) -> Node:
    """Return a client with its trained model and its data.

    Parameters
    ----------
    folder : Result or path
        A run folder; clients are as they were at its last checkpoint. Or the ``state-dir`` of a SuperNode, on its
        machine: either the folder itself, for the run in which the client trained last, or ``STATE_DIR/run-ID``.
    client : int or str
        The client's number, or its name; see `client_number`.
    data : bool
        Whether to read the client's data. If False, a client from a ``state-dir`` that describes the model's inputs has
        no samples.

    Returns
    -------
    Node
        ``model`` is the trained model, ``predictor`` the evaluated one; with ``keep-best``, both are from the round
        with the best validation accuracy. ``data`` has the client's training, validation and test samples, and
        ``data.others`` the test samples of other domains.

    Raises
    ------
    RunFolderError
        The folder has no checkpoint and no state, or not this client's model: the client has not trained, or its node
        keeps the model, as with Flower's engines. Or the client's data are not those of the run, or no client has this
        name.
    """
    folder = Path(folder).expanduser()
    client_id = client_number(folder, client)
    if not (folder / CONFIG_FILE).exists():
        return _from_state(folder, client_id, data=data)
    config, checkpoint = run_config(folder), Checkpoint.read(folder)
    if not 0 <= client_id < config.clients:
        raise RunFolderError(f"{folder} has clients 0 .. {config.clients - 1}, and no client {client_id}")
    node = _node(config, client_id, checkpoint.at["run"])
    _check_data(node, checkpoint.data_digest(client_id), folder)
    if client_id in checkpoint.at["clients"]:
        blob = checkpoint.client_state(client_id)
        decode(blob, node.stamp, str(checkpoint.folder / f"client-{client_id}"))
        node.store.write(blob)
    return _measured(node, checkpoint.download(node.client_id), folder, half=node.config.half)


def _check_data(node: Node, before: str, place: Path) -> None:
    """Raise RunFolderError if a client's data are not those with this digest; warn if the run recorded none."""
    if not before and any(one.can_change for one in data_sets(node.config.dataset, node.config.reading)):
        warn(f"{place}: {node}: the run did not record its data, so they are not compared")
    if before and (changed := unlike(before, node.data.digest)):
        raise RunFolderError(f"{place}: {node}: its {changed} have changed since the run: restore them, or run again")


def run_config(folder: Path) -> RunConfig:
    """Return the config of a run, with the number of its clients where they decided it, as with Flower's engines."""
    config, summary = config_of(folder), read_summary(folder)
    return config if config.clients or summary is None else config.with_values({"clients": summary["clients"]})


def load_deployed(folder: Path, client: int, place: Path) -> Node:
    """Return a client of a deployment with its trained model and its data, from the run folder and files of its node.

    `place` is the node's ``state-dir``, which names its data; or, if the server has the model, the data themselves, a
    folder or file as in ``dataset``.
    """
    config, checkpoint = run_config(folder), Checkpoint.read(folder)
    state = place / f"run-{checkpoint.at['run']}"
    if state_file(state, client).exists():
        return _from_state(state, client, data=True)  # measured with its last download
    if not place.exists():
        raise RunFolderError(f"{place}: client {client}'s node has no such folder or file")
    said = next((one for one in read_clients(folder) or () if one["partition"] == client), None)
    own: dict[str, Value] = {"dataset": str(place), "partition": "all"}
    if said is not None and said["model"]:
        own["models"] = said["model"]
    node = _node(config.with_values(own), client, checkpoint.at["run"])
    _check_data(node, "", folder)  # a deployment records no digest
    return _measured(node, checkpoint.download(node.client_id), folder, half=node.config.half)


def _measured(node: Node, download: Arrays, folder: Path, *, half: bool = False) -> Node:
    """Return a client whose state is loaded, with the predictor that this download gives it.

    With `half`, the download is rounded as when it was sent in half precision.
    Raises RunFolderError if the client has no state, because it has not trained or keeps it elsewhere, or if the state
    does not fit the client.
    """
    client = build_client(node.config, node)
    state = node.read_state()
    is_kept = client.keeps_state or not download
    if (is_kept and not (state and state.round)) or (node.config.keep_best and not state):
        raise RunFolderError(
            f"{folder}: no model of client {node.client_id} in the last checkpoint: it has not trained, or its node "
            "keeps the model: name that node's state-dir"
        )
    try:
        if half and download:
            download = widened(client.assess_spec(), halved(download), "server")
        predictor = Holder(client).predictor(download)
    except (PayloadError, StateError) as error:
        raise RunFolderError(f"{folder}: {error}") from None
    node.model.eval()
    return replace(node, predictor=predictor)


def client_number(folder: Path | str, client: int | str) -> int:
    """Return the number of a client of a run.

    `client` is a number, or a text: the client's name as tables show it, in any case, one of its owners, its file or
    its number. ``client 2`` is client 2 even if another one is named 2. A node's ``state-dir`` has only numbers. Raises
    RunFolderError if no client has this name, or if the text is the number of one client and the name of another.
    """
    if isinstance(client, int):
        return client
    folder, text = Path(folder), " ".join(client.split())
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
    if not (folder / CONFIG_FILE).exists():
        if number is None:
            raise RunFolderError(_no_run(folder, ", and in a state-dir clients have only numbers"))
        return number
    if (records := read_clients(folder)) is None and number is None:
        raise RunFolderError(f"{folder} has no names of clients (no {CLIENTS_FILE}): give a number")
    names = {record["partition"]: name_of(record) for record in records or ()}
    found = _called_so(text, names)
    if number in names and found not in (None, number):
        raise RunFolderError(
            f"'{text}' is the number of {called(number, names[number])} and the name of {called(found, names[found])}: "
            f"say 'client {number}' or 'client {found}'"
        )
    if found is not None:
        return found
    if number is not None:
        return number
    shown = [f"{client_id} ({name})" if name else str(client_id) for client_id, name in sorted(names.items())]
    raise RunFolderError(f"{folder} has no client '{text}': it has {some(shown, SHOWN)}")


def _called_so(text: str, names: Mapping[int, str]) -> int | None:
    """Return the client that a text names; None if it names none or several."""
    bare = str(Path(text).with_name(stem(Path(text)))) if ending(Path(text)) in TABLES else text
    whole = {client_id: (name, called(client_id), called(client_id, name)) for client_id, name in names.items()}
    owners = {client_id: name.split(" + ") for client_id, name in names.items()}
    for wanted in filter(None, (look(text), look(bare))):
        for ways in (whole, owners):
            found = [client_id for client_id, known in ways.items() if wanted in map(look, known)]
            if len(found) == 1:
                return found[0]
    return None


def _no_run(folder: Path, otherwise: str) -> str:
    """Return the message that a folder is not a run folder, and which runs it contains, or else this ending."""
    runs = sorted(str(path.parent.relative_to(folder)) for path in folder.glob(f"**/{CONFIG_FILE}"))
    held = f", but contains the runs {some(runs, SHOWN)}: name one of these" if runs else otherwise
    return f"{folder} is not a run folder (no {CONFIG_FILE}){held}"


def _from_state(folder: Path, client_id: int, *, data: bool) -> Node:
    """Return a client from its newest state in a state folder."""
    states = [state_file(path, client_id) for path in (folder, *folder.glob("run-*"))]
    found = [path for path in states if path.exists()]
    if not found:
        raise RunFolderError(_no_run(folder, f" and no state-dir with client {client_id}"))
    path = max(found, key=lambda path: path.stat().st_mtime)
    try:
        blob = read_file(path)
        stamp = Stamp(**verified(blob, STATE)["stamp"])
        state = decode(blob, stamp, str(path))
    except DamagedError as error:
        raise RunFolderError(f"{path}: damaged state ({error})") from None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    config, without_samples = _unpacked(state)
    sent = {name: tensor.numpy() for name, tensor in under(MEASURED, state.tensors).items()}

    def made(data: ClientData | None) -> Node:
        node = _node(config, client_id, int(stamp.run), data)
        if data is None:
            _check_data(node, (state.inputs or {})["data"], path)
        node.store.write(blob)
        return _measured(node, sent, folder)

    is_best, numbers = bool(under(BEST, state.tensors)), state.numbers
    round = state.round if is_best else numbers.get(f"{MEASURED}round", state.round)
    if round != state.round:
        warn(
            f"{path}: client {client_id} was trained in round {state.round}, after its last evaluation in round {round}"
        )
    elif not data:
        digest = numbers.get(f"{WITH_BEST if is_best else MEASURED}digest")
        with suppress(ValueError, RuntimeError):  # measuring needs samples, such as for statistics
            node = made(without_samples)
            if f"{MEASURED}digest" not in numbers or digest_of(node.predictor or node.model) == digest:
                return node
    return made(None)


def _unpacked(state: ClientState) -> tuple[RunConfig, ClientData]:
    """Return a client's config, and its data without samples, from a saved state."""
    metadata, tensors = state.inputs or {}, under(INPUTS, state.tensors)
    spec = DataSpec(tuple(metadata["shape"]), metadata["classes"], metadata["vocabulary"])
    arrays = stored.Arrays(
        spec,
        tensors["inputs"],
        torch.zeros(0, dtype=torch.int64),
        train_rows=0,
        peak=tensors["peak"] if metadata["peak"] is None else metadata["peak"],
        centre=tensors["centre"],
        origin=tensors.get("origin"),
        class_names=tuple(metadata["class names"]),
        input_names=tuple(metadata["input names"]),
        columns=tuple(Column.of(one) for one in metadata["columns"]),
        brightest=metadata["brightest"],
        words=None if metadata["words"] is None else partial(list, metadata["words"]),
    )
    none = Samples(arrays, torch.zeros(0, dtype=torch.int64))
    return RunConfig.from_flat(metadata["config"]), ClientData(spec, none, none, none)


def _node(config: RunConfig, client_id: int, run: int, data: ClientData | None = None) -> Node:
    """Return a client with initial weights; if data without samples are given, no files are read."""
    own: dict[str, Value] = {"partition-id": client_id, "num-partitions": config.clients}
    without_files = {"state-dir": ""} if data is None else {"state-dir": "", "pretrained": ""}
    context = Context(run, 0, own, RecordDict(), config.with_values(without_files).to_flat())
    node = Node.from_context(context) if data is None else Node.without_data(context, data)
    node.model.eval()
    return node
