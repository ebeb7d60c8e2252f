"""Weights of torchvision's networks, trained on ImageNet, from files on this machine. Nothing is downloaded."""

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hetfl_flwr.errors import ModelError, cause

ORIGINAL = "IMAGENET1K_V1"
"""Which of torchvision's weights of a network are meant: those that all of them have."""

ON_THE_HUB = ("resnet18", "resnet34", "resnet50")
"""Networks whose weights the Hugging Face hub has under torchvision's names of layers (``timm/NAME.tv_in1k``)."""


def find_weights(name: str, source: str) -> Path:
    """Return the file with a network's weights.

    Parameters
    ----------
    name : str
        A network of torchvision, such as ``"resnet18"``.
    source : str
        ``"torchvision"``: the file that torchvision keeps in torch's hub folder. ``"hub"``: the cache of the Hugging
        Face hub; ResNets only. Else a folder that holds ``NAME.safetensors`` or ``NAME.pth``.

    Raises
    ------
    ModelError
        There is none: says which file was looked for and how to get it.
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
    """Put the weights of a file into a network. The file is read once in a process.

    Images of one channel take the sum over the three colours of the first convolution's weights, which is what three
    equal colours give. The head is left as it is where its number of classes is another one, or the file has none.

    Parameters
    ----------
    module : nn.Module
        The network, under torchvision's names of layers.
    head : str
        Name of its last linear layer.
    file : Path
        What `find_weights` found: a state dict, without any code in it.

    Raises
    ------
    ModelError
        The file cannot be read, or holds the weights of another network.
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
                f"pretrained: {file} holds the weights of another network: '{entry}' is {given} there, {needed} here"
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
        raise ModelError(f"pretrained: {file} is no state dict: save module.state_dict() alone, names to tensors")
    return weights
