"""ImageNet weights of torchvision's networks, from files on this machine. Nothing is downloaded."""

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hetfl_flwr.errors import ModelError, cause

ORIGINAL = "IMAGENET1K_V1"
"""The version of torchvision's weights that is used: the only one that all of its networks have."""

ON_THE_HUB = ("resnet18", "resnet34", "resnet50")
"""Networks with weights on the Hugging Face hub under torchvision's layer names (``timm/NAME.tv_in1k``)."""


def find_weights(name: str, source: str) -> Path:
    """Return the path of the weights of a torchvision network.

    The source is ``"torchvision"`` for the file that torchvision keeps in torch's hub folder, ``"hub"`` for the cache
    of the Hugging Face hub (ResNets only), or a folder with ``NAME.safetensors`` or ``NAME.pth``. Raises ModelError
    with the missing file and how to get it.
    """
    if source == "torchvision":
        url = import_module("torchvision.models").get_model_weights(name)[ORIGINAL].url
        places = [Path(torch.hub.get_dir(), "checkpoints", Path(url).name)]
        code = f"import torchvision; torchvision.models.get_model('{name}', weights='{ORIGINAL}')"
        how = f'get it once by python -c "{code}"'
    elif source == "hub":
        from huggingface_hub import constants, try_to_load_from_cache

        repository = f"timm/{name}.tv_in1k"
        cached = try_to_load_from_cache(repository, "model.safetensors") if name in ON_THE_HUB else None
        places = [Path(cached if isinstance(cached, str) else constants.HF_HUB_CACHE)]
        code = f"from huggingface_hub import hf_hub_download as get; get('{repository}', 'model.safetensors')"
        how = f'get it once by python -c "{code}" (the hub has {", ".join(ON_THE_HUB)} only)'
    else:
        places = [Path(source).expanduser() / f"{name}{suffix}" for suffix in (".safetensors", ".pth")]
        how = "put one there"
    for place in places:
        if place.is_file():
            return place
    raise ModelError(
        f"pretrained: no weights of {name}: no file {' or '.join(map(str, places))}; {how}, or set pretrained to "
        f"torchvision, hub or a folder with {name}.safetensors or {name}.pth"
    )


def load_weights(module: nn.Module, head: str, file: Path) -> None:
    """Load the weights of a file into a network with torchvision's layer names and a linear layer `head` at the end.

    For images of one channel, the weights of the first convolution are summed over the three colors, which gives the
    same result as three equal colors. The head is not loaded if the file has none or its number of classes differs.
    Each file is read once per process. Raises ModelError if it cannot be read, or has the weights of another network.
    """
    weights, own = dict(_read(file)), module.state_dict()
    stem, heads = next(iter(own)), {f"{head}.weight", f"{head}.bias"}
    if stem in weights and own[stem].shape[1] == 1:
        weights[stem] = weights[stem].sum(1, keepdim=True)
    if any(entry in weights and weights[entry].shape != own[entry].shape for entry in heads):
        weights = {entry: tensor for entry, tensor in weights.items() if entry not in heads}
    for entry in sorted(own.keys() - heads | weights.keys()):
        given, needed = (tuple(state[entry].shape) if entry in state else "absent" for state in (weights, own))
        if given != needed and not (given == "absent" and entry.endswith("num_batches_tracked")):
            raise ModelError(
                f"pretrained: {file} has the weights of another network: '{entry}' is {given}, expected {needed}"
            )
    module.load_state_dict(weights, strict=False)


@lru_cache(maxsize=8)
def _read(file: Path) -> Mapping[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        weights = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(f"pretrained: {file} cannot be read: {cause(error)}") from None
    if not isinstance(weights, Mapping) or not all(isinstance(entry, Tensor) for entry in weights.values()):
        raise ModelError(f"pretrained: {file} is not a state dict: save only module.state_dict(), names to tensors")
    return weights
