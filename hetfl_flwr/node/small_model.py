"""A small model that a client trains beside its own: the same in all clients, and the server's, too."""

from hetfl_flwr.config import AUTO, one_model
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models import SplitModel, build_model, mixed
from hetfl_flwr.node.node import Node


def small_model(key: str, name: str, node: Node) -> SplitModel:
    """Build the model that clients have beside their own, as the server builds it.

    Its width is its own, and its first weights are those of `hetfl_flwr.server.global_model.small_global_model`.

    Parameters
    ----------
    key : str
        The config key that names it, for errors.
    name : str
        A model, as in ``models``; "auto": the first of what ``models = "auto"`` stands for.
    node : Node
        The client's surroundings.

    Raises
    ------
    ModelError
        The model does not fit the client's data; the line names the key and a model that does.
    """
    config, spec = node.config, node.data.spec
    fits = one_model(spec.kind)
    try:
        named = fits if name == AUTO else name
        built = build_model(
            named, spec, seed=config.seed, scope=("global",), head_bias=config.head_bias, stem=config.stem
        )
    except ModelError as error:
        raise ModelError(f"{key}: {error}; set {key} to auto, or to a model that fits, such as {fits}") from None
    return mixed(built.to(node.device), config.mixed_precision)
