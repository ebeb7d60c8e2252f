"""Base class of an algorithm's client side."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import nn

from hetfl_flwr.common.flower import NumPyClient
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.metrics import Metrics as Metrics
from hetfl_flwr.learning.quality import measure
from hetfl_flwr.learning.training import (
    Loss,
    batches_a_round,
    draw_batches,
    draw_epochs,
    evaluate,
    make_optimizer,
    train,
)
from hetfl_flwr.models import SplitModel
from hetfl_flwr.node.holder import Holder, Optimizers
from hetfl_flwr.node.node import Node
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.wire.messages import EXAMPLES, ROUND
from hetfl_flwr.wire.spec import EMPTY, Arrays, PayloadSpec
from hetfl_flwr.wire.weights import load_model_arrays


class KnowledgeClient(NumPyClient, ABC):
    """A client that learns from its own data and from the server's downloads.

    An algorithm implements `download_spec`, `upload_spec` and `learn`. The client's model, data and run config are in
    ``self.node``. The networks of `modules`, everything in ``self.numbers`` and each optimizer that `optimizer` has
    returned persist between rounds.

    Parameters
    ----------
    node : Node
        The client's model, data, run config and state store.

    Attributes
    ----------
    node : Node
        The client's model, data, run config and state store.
    numbers : dict of str to int or float
        The algorithm's state besides networks and optimizers; it persists between rounds.
    keeps_state : bool
        Class attribute: whether any state persists between rounds; False if each download contains all that is needed.
        Default: True.
    starts_alike : bool
        Class attribute: whether clients of the same architecture start from the same weights, those of the server's
        model of that architecture if it has one. False: each client draws its own. Default: False.
    has_distillation_term : bool
        Class attribute: whether the loss is two `Terms`, so that ``projection`` can be set. Default: False.
    fine_tunes : bool
        Class attribute: whether `assess` measures the server's model, so that with ``fine-tune-epochs`` a copy of it is
        trained and measured. Default: False.

    Raises
    ------
    ConfigError
        ``keep-best`` is set, but the client has no validation samples.
    """

    keeps_state = True
    starts_alike = False
    has_distillation_term = False
    fine_tunes = False

    @classmethod
    def tuned(cls, options: Mapping[str, Any]) -> str | None:
        """Return the option that ``hetfl tune`` varies in addition to the learning rate; empty: none.

        Default: None, the first option that is a fraction or a factor.

        Parameters
        ----------
        options : mapping
            The options that the run config sets, by their whole key, as "NAME.OPTION".
        """
        return None

    def __init__(self, node: Node) -> None:
        if node.config.keep_best and len(node.data.train) and not len(node.data.validation):
            raise ConfigError("keep-best = true, but this client has no validation samples: raise validation-fraction")
        self.node = node
        self.numbers: dict[str, int | float] = {}
        self._optimizers = Optimizers(node.config)
        self._fine_tuned: SplitModel | None = None

    def modules(self) -> Mapping[str, nn.Module]:
        """Return the networks that persist between rounds: by default, the client's model."""
        return {"model": self.node.model}

    def renewed(self) -> Iterable[nn.Module]:
        """Return the networks whose weights each download replaces completely before use: by default, none.

        Their initial weights are not restored before each message.
        """
        return ()

    @abstractmethod
    def download_spec(self) -> PayloadSpec:
        """Declare the download."""

    @abstractmethod
    def upload_spec(self) -> PayloadSpec:
        """Declare the upload."""

    @abstractmethod
    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round.

        Parameters
        ----------
        download : mapping of str to array
            The download, checked against `download_spec`.
        round : int
            The round, from 1.

        Returns
        -------
        tuple
            The upload and the metrics, including ``"samples-seen"``, the number of samples trained on, with repeats.
            The number of the client's training samples, ``"num-examples"``, is added automatically; an algorithm that
            weights clients differently may set another number.
        """

    def assess(self, download: Arrays) -> Metrics:
        """Evaluate this client: by default, its `predictor` on its own test set.

        With `fine_tunes`, the accuracy of the server's model is added as ``"global-accuracy"``.
        """
        node = self.node
        if not self.fine_tunes:
            return measure(self.predictor(), node.data.test)
        if not node.config.fine_tune_epochs:
            measured = measure(self.predictor(), node.data.test)
            return {**measured, "global-accuracy": measured["accuracy"]}
        self._fine_tuned = self._fine_tune()
        measured = measure(self.predictor(), node.data.test)
        return {**measured, "global-accuracy": evaluate(node.model, node.data.test).accuracy}

    def _fine_tune(self) -> SplitModel:
        """Return a copy of the model, trained on the client's samples for ``fine-tune-epochs``."""
        node, config, copy = self.node, self.node.config, deepcopy(self.node.model)
        scope, samples = (config.seed, node.client_id, "fine-tune"), node.training(node.data.train)
        passes = {"epochs": config.fine_tune_epochs, "batches": 0}
        batches = draw_batches(generator(*scope), len(samples), config.batch_size, **passes)
        with seeded(*scope):
            optimizer = make_optimizer(config, copy.train().parameters())
            train(samples, batches, optimizer, lambda inputs, labels: node.data_loss(copy(inputs), labels))
        return copy

    def predictor(self) -> nn.Module:
        """Return the model to evaluate, from inputs (B, ...) to logits (B, C).

        By default, it is the client's model or its fine-tuned copy. `assess` evaluates it on the test samples; it is
        also evaluated on validation samples and on other domains.
        """
        return self.node.model if self._fine_tuned is None else self._fine_tuned

    def forward_of(self, model: SplitModel, download: Arrays) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a model's function with exchanged weights, from inputs (B, ...) to outputs: by default, the model.

        ``hetfl audit`` uses it to interpret uploads and to train as the client does.

        Parameters
        ----------
        model : SplitModel
            A model of the client's architecture. The function is differentiable with respect to its parameters.
        download : mapping of str to array
            The download.
        """
        return model

    def assess_spec(self) -> PayloadSpec:
        """Declare the download for evaluation: by default, it is empty."""
        return EMPTY

    def local_steps(self, samples: int) -> int:
        """Return the number of training steps in a round, given the number of the client's training samples.

        By default, the run config determines it. Only ``hetfl audit`` uses it, to imitate a client; training does not.
        """
        return batches_a_round(self.node.config, samples)

    def epochs(self, round: int, *, samples: int | None = None, times: int = 1) -> Iterator[list[torch.Tensor]]:
        """Draw the mini-batches of a round as the run config sets them, grouped by pass over the data.

        Parameters
        ----------
        round : int
            The round, from 1.
        samples : int, optional
            Number of samples to draw from; default: the client's training samples.
        times : int
            Multiple of the run config's local work, 1 or more.
        """
        config = self.node.config
        return draw_epochs(
            generator(config.seed, self.node.client_id, round, "batches"),
            len(self.node.data.train) if samples is None else samples,
            config.batch_size,
            epochs=config.local_epochs * times,
            batches=config.local_batches * times,
        )

    def batches(self, round: int, *, samples: int | None = None, times: int = 1) -> Iterator[torch.Tensor]:
        """Draw the mini-batches of a round, as `epochs` does, as one sequence."""
        return chain.from_iterable(self.epochs(round, samples=samples, times=times))

    def train(
        self, batches: Iterable[torch.Tensor], loss: Loss, optimizer: torch.optim.Optimizer | None = None
    ) -> tuple[int, float]:
        """Minimize a loss on the client's training samples with `hetfl_flwr.train`.

        The samples are augmented if the run config sets ``augment``.

        Parameters
        ----------
        batches : iterable of Tensor
            Sample indices (B,) of each mini-batch, as `batches` draws them.
        loss : callable
            Maps inputs and labels to a scalar, or to two `Terms`, which the run config's ``projection`` combines.
        optimizer : Optimizer, optional
            Default: that of `optimizer`, whose moments persist between rounds.

        Returns
        -------
        tuple of int and float
            The number of samples seen, and the mean loss over them.
        """
        projection = self.node.config.projection
        samples = self.node.training(self.node.data.train)
        return train(samples, batches, optimizer or self.optimizer(), loss, projection=projection)

    def own_loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the model's cross-entropy on own samples (B, ...) with labels (B,), weighted by ``class-weights``."""
        return self.node.data_loss(self.node.model(inputs), labels)

    def load(self, module: nn.Module, arrays: Arrays) -> None:
        """Load received arrays into a network of this client, or into a part of one.

        Optimizers reset the moments of the replaced parameters, which belong to other weights, unless the run config
        sets ``moments = "kept"``. Moments of other parameters are kept.

        Parameters
        ----------
        module : Module
            The network.
        arrays : mapping of str to array
            Entries of its state dict; all other entries stay unchanged.
        """
        load_model_arrays(module, arrays)
        named = module.named_parameters(remove_duplicate=False)
        self._optimizers.replaced([parameter for name, parameter in named if name in arrays])

    def optimizer(
        self, name: str = "optimizer", parameters: Iterable[nn.Parameter] | None = None
    ) -> torch.optim.Optimizer:
        """Return the run config's optimizer, with its moments from the last round.

        Moments of parameters that `load` replaces are reset.

        Parameters
        ----------
        name : str
            Its name in the client's state.
        parameters : iterable of Parameter, optional
            The parameters to update, the same in each round. Default: those of the model.
        """
        return self._optimizers.get(name, self.node.model.parameters() if parameters is None else parameters)

    def kept(self, name: str, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Restore the moments of an optimizer that the algorithm built itself, and save them after the round.

        Parameters
        ----------
        name : str
            Its name in the client's state.
        optimizer : Optimizer
            The optimizer, with the same parameters in each round.
        """
        return self._optimizers.load(name, optimizer)

    @final
    def fit(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> tuple[list[NDArray[Any]], int, Metrics]:
        """Restore the state, train, save the state and return the upload, as Flower's interface requires."""
        download = dict(zip(self.download_spec().names, parameters, strict=True))
        upload, metrics = Holder(self).learn(download, int(config[ROUND]))
        return list(upload.values()), int(metrics.pop(EXAMPLES)), metrics

    @final
    def evaluate(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> tuple[float, int, Metrics]:
        """Restore the state and evaluate, as Flower's interface requires; with ``keep-best``, keep the best model."""
        download = dict(zip(self.assess_spec().names, parameters, strict=True))
        metrics = Holder(self).measure(download, config.get(ROUND))
        return float(metrics.pop("loss")), int(metrics.pop(EXAMPLES)), metrics


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values as a new array."""
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array
