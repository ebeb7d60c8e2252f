"""Keys of the clients' models."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from hetfl_flwr.config.keys import PER_NODE, Keys, checked_path

AUTO = "auto"
"""Value of ``models`` that leaves the choice to the algorithm's kind."""

FIT = "fit"
"""Value of ``models`` that lets each client choose the largest of ``fit-models`` that its device can train."""

AUTO_MODELS = {
    "image": "lenet5,mlp,fedhe:5",
    "series": "conv1d:small,conv1d:medium,conv1d:large",
    "table": "mlp,tabular:0,tabular:1",
    "text": "lstm1,bag,lstm2",
}
"""What ``models = "auto"`` stands for, by what inputs are; the first alone where clients must have one model."""


def one_model(kind: str) -> str:
    """Return what ``models = "auto"`` gives clients that must have one model, by what inputs are.

    Examples
    --------
    >>> one_model("table")
    'mlp'
    """
    return AUTO_MODELS[kind].partition(",")[0]


def _models(text: str) -> str:
    return text if text in (AUTO, FIT) else _names(text)


def _names(text: str) -> str:
    from hetfl_flwr.models import parse_models

    parse_models(text)
    return text


def _candidates(text: str) -> str:
    return _names(text) if text else text


class ModelKeys(Keys):
    """The models, and what they start from."""

    models: Annotated[
        str,
        AfterValidator(_models),
        Field(
            description="Models, assigned to the clients in turn (see assignment): names from `hetfl list models`, or "
            f"module:function; NAME@0.5 has half of the width. auto: {AUTO_MODELS['image']} for images, "
            f"{AUTO_MODELS['table']} for tables, {AUTO_MODELS['text']} for texts, {AUTO_MODELS['series']} for time "
            "series; the first alone for an algorithm that needs one model. fit: each client takes the largest of "
            "fit-models that its device can train within fit-seconds and fit-memory."
        ),
    ] = AUTO
    fit_models: Annotated[
        str,
        PER_NODE,
        AfterValidator(_candidates),
        Field(
            description="Candidates of models = fit, as names in models. Each takes a few training steps when the "
            "client registers; the choice holds for the run. Empty: those of auto."
        ),
    ] = ""
    fit_seconds: Annotated[
        float,
        PER_NODE,
        Field(
            ge=0,
            le=1e9,
            description="Seconds that a round of training may take with models = fit: of a step, times the "
            "mini-batches of a round. 0: no limit.",
        ),
    ] = 0.0
    fit_memory: Annotated[
        float,
        PER_NODE,
        Field(
            ge=0,
            le=1e9,
            description="Megabytes that training may take with models = fit: weights, gradients, the optimizer's "
            "moments and what a step keeps for the way back; the process itself comes on top. 0: no limit.",
        ),
    ] = 0.0
    assignment: Annotated[
        Literal["round-robin", "random"],
        Field(
            description="How models are assigned to the clients. round-robin: client k gets the k-th of the list, and "
            "so on; random: as many clients get each model, but the seed draws which. With classes:N and round-robin, "
            "clients of one model may all have the same classes."
        ),
    ] = "round-robin"

    pretrained: Annotated[
        str,
        PER_NODE,
        AfterValidator(checked_path),
        Field(
            description="Source of ImageNet weights for torchvision networks: torchvision (torch's hub folder), hub "
            "(cache of the Hugging Face hub; ResNets only), or a folder with MODEL.safetensors or "
            "MODEL.pth. Nothing is downloaded; other models start from random weights. Empty: random "
            "weights for all."
        ),
    ] = ""

    width: Annotated[
        int,
        Field(
            ge=0,
            le=65_536,
            description="Embedding width of all models; a model of another width is brought to it in front of its "
            "head (see width-by). 0: each model's own width, or what the algorithm requires.",
        ),
    ] = 0

    width_by: Annotated[
        Literal["linear", "pool"],
        Field(
            description="How a model gets the embedding width. linear: a linear layer and ReLU, which are trained; "
            "pool: the average of neighbouring features, as in HtFLlib, where nothing is trained. A narrower model "
            "then repeats its features."
        ),
    ] = "linear"

    stem: Annotated[
        Literal["fitted", "imagenet"],
        Field(
            description="First layers of torchvision's networks and of resnet4 to resnet10 on images below 64 pixels a "
            "side. fitted: they keep the image's size, as is usual on CIFAR; imagenet: torchvision's own, which "
            "make it a quarter, as in HtFLlib. Much faster, and less accurate."
        ),
    ] = "fitted"

    head_bias: Annotated[
        bool,
        Field(
            description="Whether the heads, each model's last linear layer, have a bias; false: none has, as in the "
            "scripts of FedHe's authors. A method that sends heads may need it."
        ),
    ] = True
