"""Keys of the clients' training."""

from typing import Annotated, Literal

from pydantic import Field

from hetfl_flwr.config.keys import MOST, Keys


class TrainingKeys(Keys):
    """What a client does with its data in a round."""

    local_epochs: Annotated[
        int, Field(ge=1, le=MOST, description="Local epochs per round, where local-batches is 0.")
    ] = 1
    local_batches: Annotated[
        int, Field(ge=0, le=MOST, description="Local mini-batches per round. 0: whole epochs.")
    ] = 3
    batch_size: Annotated[int, Field(ge=1, le=MOST, description="Samples per mini-batch.")] = 50
    optimizer: Annotated[Literal["adam", "amsgrad", "adamw", "sgd"], Field(description="Optimizer of the clients.")] = (
        "adam"
    )
    learning_rate: Annotated[float, Field(gt=0, description="Learning rate of the optimizer.")] = 0.001
    momentum: Annotated[float, Field(ge=0, lt=1, description="Momentum of sgd.")] = 0.0
    moments: Annotated[
        Literal["reset", "kept"],
        Field(
            description="What becomes of an optimizer's moments of weights that the server replaces; those of others "
            "are always kept."
        ),
    ] = "reset"
    projection: Annotated[
        Literal["none", "qp", "pcgrad"],
        Field(
            description="How the gradient of the distillation term is combined with the gradient of the client's own "
            "data, for algorithms whose loss has both: none, their sum; qp, without the part that "
            "conflicts (FedH2L's Eq. 8); pcgrad, both without it."
        ),
    ] = "none"
    class_weights: Annotated[
        Literal["none", "balanced"],
        Field(
            description="What a sample weighs in the cross-entropy of a client's own labels: none, all the same; "
            "balanced, by its class, so that all classes of the client's training samples weigh the same together."
        ),
    ] = "none"
    weight_decay: Annotated[float, Field(ge=0, description="Weight decay of the optimizer.")] = 0.0
