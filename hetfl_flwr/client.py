"""Base of the client sides: what an algorithm implements, and what it uses."""

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

    An algorithm implements `download_spec`, `upload_spec` and `learn`. Its model, data and run config are in
    ``self.node``; the `modules` and everything in ``self.numbers`` survive between rounds, and so does each optimizer
    that `optimizer` has returned.

    Parameters
    ----------
    node : Node
        The client's model, data, run config and state store.

    Attributes
    ----------
    node : Node
        The client's model, data, run config and state store.
    numbers : dict of str to int or float
        Survives between rounds: the algorithm's state besides networks and optimizers.
    keeps_state : bool
        Class attribute: whether any state survives between rounds; False if each download holds all that is needed.
        Default: True.
    starts_alike : bool
        Class attribute: whether clients of one architecture start from the same weights, those of the server's model of
        that architecture where it has one. False: each client draws its own. Default: False.
    has_distillation_term : bool
        Class attribute: whether the loss is two `Terms`, so that ``projection`` can be set. Default: False.
    fine_tunes : bool
        Class attribute: whether `assess` measures the server's model, so that with
        ``fine-tune-epochs`` a copy of it is trained and measured. Default: False.
    tuned : str or None
        Class attribute: the option that ``hetfl tune`` varies in addition to the learning rate, empty for none.
        Default: None, the first that is a fraction or a factor.

    Raises
    ------
    ConfigError
        ``keep-best`` on a client without validation samples.
    """

    keeps_state = True
    starts_alike = False
    has_distillation_term = False
    fine_tunes = False
    tuned: str | None = None

    def __init__(self, node: Node) -> None:
        if node.config.keep_best and len(node.data.train) and not len(node.data.validation):
            raise ConfigError("keep-best = true, but there are no validation samples here: raise validation-fraction")
        self.node = node
        self.numbers: dict[str, int | float] = {}
        self._optimizers = Optimizers(node.config)
        self._fine_tuned: SplitModel | None = None

    def modules(self) -> Mapping[str, nn.Module]:
        """Return the networks that survive between rounds: by default the client's model."""
        return {"model": self.node.model}

    def renewed(self) -> Iterable[nn.Module]:
        """Return the networks that each download replaces completely before they are used: by default none.

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
            The upload, and metrics, among them ``"samples-seen"``, the samples trained on, repeats included. The
            number of the client's training samples, ``"num-examples"``, is added automatically; an algorithm that
            uses other weights may set another number.
        """

    def assess(self, download: Arrays) -> Metrics:
        """Measure this client: by default its `predictor` on its own test set.

        With `fine_tunes` the model is measured, too, as ``"global-accuracy"``.
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
        """Return a copy of the model, trained on the own samples for ``fine-tune-epochs``."""
        node, config, copy = self.node, self.node.config, deepcopy(self.node.model)
        scope, samples = (config.seed, node.client_id, "fine-tune"), node.training(node.data.train)
        passes = {"epochs": config.fine_tune_epochs, "batches": 0}
        batches = draw_batches(generator(*scope), len(samples), config.batch_size, **passes)
        with seeded(*scope):
            optimizer = make_optimizer(config, copy.train().parameters())
            train(samples, batches, optimizer, lambda inputs, labels: node.data_loss(copy(inputs), labels))
        return copy

    def predictor(self) -> nn.Module:
        """Return the model to measure, from inputs (B, ...) to logits (B, C): by default the own or a fine-tuned copy.

        `assess` measures it on the test samples; it is also measured on validation samples and other domains.
        """
        return self.node.model if self._fine_tuned is None else self._fine_tuned

    def forward_of(self, model: SplitModel, download: Arrays) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the function of a model with exchanged weights, from inputs (B, ...): by default the model itself.

        The audit uses it to interpret uploads and to train as the client does.

        Parameters
        ----------
        model : SplitModel
            Of the client's architecture. The function uses its parameters, and is differentiable with respect to them.
        download : mapping of str to array
            The download.
        """
        return model

    def assess_spec(self) -> PayloadSpec:
        """Declare the download for evaluation: by default empty."""
        return EMPTY

    def local_steps(self, samples: int) -> int:
        """Return the training steps of a round on a number of own samples: by default, as the run config sets.

        Training does not use it; the audit does, to imitate a client.
        """
        return batches_a_round(self.node.config, samples)

    def epochs(self, round: int, *, samples: int | None = None, times: int = 1) -> Iterator[list[torch.Tensor]]:
        """Draw this round's mini-batches as the run config sets, pass by pass over the data.

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
        """Draw the mini-batches of `epochs`, one after the other."""
        return chain.from_iterable(self.epochs(round, samples=samples, times=times))

    def train(
        self, batches: Iterable[torch.Tensor], loss: Loss, optimizer: torch.optim.Optimizer | None = None
    ) -> tuple[int, float]:
        """Minimise a loss on the client's training samples, as `hetfl_flwr.learning.training.train`.

        They are augmented if the run config sets ``augment``.

        Parameters
        ----------
        batches : iterable of Tensor
            Positions (B,) of each mini-batch, as `batches` draws them.
        loss : callable
            From inputs and labels to a scalar, or to two `Terms`, which the run config's ``projection`` combines.
        optimizer : Optimizer, optional
            Default: the one whose moments survive between rounds.

        Returns
        -------
        tuple of int and float
            Samples seen, and the mean loss over them.
        """
        projection = self.node.config.projection
        samples = self.node.training(self.node.data.train)
        return train(samples, batches, optimizer or self.optimizer(), loss, projection=projection)

    def own_loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the model's cross-entropy of own samples (B, ...) with labels (B,), with the run's class weights."""
        return self.node.data_loss(self.node.model(inputs), labels)

    def load(self, module: nn.Module, arrays: Arrays) -> None:
        """Load received arrays into a network of this client, or into a part of one.

        Optimizers lose the moments of the parameters that are replaced, unless the run config has ``moments = "kept"``:
        they belong to other weights. Parameters that are not replaced keep theirs.

        Parameters
        ----------
        module : Module
            The network.
        arrays : mapping of str to array
            Entries of its state dict; others are unchanged.
        """
        load_model_arrays(module, arrays)
        named = module.named_parameters(remove_duplicate=False)
        self._optimizers.replaced([parameter for name, parameter in named if name in arrays])

    def optimizer(
        self, name: str = "optimizer", parameters: Iterable[nn.Parameter] | None = None
    ) -> torch.optim.Optimizer:
        """Return the run config's optimizer, with the moments that it had after the last round.

        Moments of parameters that `load` replaces are reset.

        Parameters
        ----------
        name : str
            Its name in the client's state.
        parameters : iterable of Parameter, optional
            The parameters that it updates; default: the model's. The same in each round.
        """
        return self._optimizers.get(name, self.node.model.parameters() if parameters is None else parameters)

    def kept(self, name: str, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Restore the moments of an optimizer that the algorithm has built, and save them after the round.

        Parameters
        ----------
        name : str
            Its name in the client's state.
        optimizer : Optimizer
            The same in each round.
        """
        return self._optimizers.load(name, optimizer)

    @final
    def fit(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> tuple[list[NDArray[Any]], int, Metrics]:
        """Restore the state, train, save the state, upload: Flower's interface."""
        download = dict(zip(self.download_spec().names, parameters, strict=True))
        upload, metrics = Holder(self).learn(download, int(config[ROUND]))
        return list(upload.values()), int(metrics.pop(EXAMPLES)), metrics

    @final
    def evaluate(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> tuple[float, int, Metrics]:
        """Restore the state and evaluate; with ``keep-best``, keep the best model so far."""
        download = dict(zip(self.assess_spec().names, parameters, strict=True))
        metrics = Holder(self).measure(download, config.get(ROUND))
        return float(metrics.pop("loss")), int(metrics.pop(EXAMPLES)), metrics


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values as a new array."""
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array
