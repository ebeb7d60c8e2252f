"""What a client has learnt, from the folder of a run that has ended or been stopped."""

from pathlib import Path

from flwr.app import Context, RecordDict

from hetfl_flwr.checkpoint import Checkpoint
from hetfl_flwr.config import Value
from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.node import Node
from hetfl_flwr.results import config_of
from hetfl_flwr.state import decode


def load_client(folder: Path | str, partition: int) -> Node:
    """Return a client of a run on this machine with its trained model and its data.

    Parameters
    ----------
    folder : Path
        A run folder of the local engine; the clients' models are those of its last checkpoint.
    partition : int
        Which client.

    Returns
    -------
    Node
        ``model`` is the trained model, with ``keep-best`` the best on the validation samples; ``data`` has the client's
        training, validation and test samples, and ``data.others`` the test samples of other domains.

    Raises
    ------
    RunFolderError
        The folder holds no checkpoint, or no such client's model: not all clients train, some algorithms keep no model
        on the client, and Flower's engines keep it on the nodes.
    """
    folder = Path(folder)
    config, checkpoint = config_of(folder), Checkpoint.read(folder)
    path = checkpoint.client_file(folder, partition)
    if not path.exists():
        raise RunFolderError(f"{path}: there is no model of client {partition} in the last checkpoint of this run")
    own: dict[str, Value] = {"partition-id": partition, "num-partitions": config.clients}
    flat = {key: value for key, value in config.to_flat().items() if key != "state-dir"}
    node = Node.from_context(Context(checkpoint.run, 0, own, RecordDict(), flat))
    tensors = decode(path.read_bytes(), node.stamp, str(path)).tensors
    prefix = "best." if any(name.startswith("best.") for name in tensors) else "model."
    weights = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if not weights:
        raise RunFolderError(f"{path}: client {partition} keeps no model of its own under {config.algorithm}")
    node.model.load_state_dict(weights)
    node.model.eval()
    return node
