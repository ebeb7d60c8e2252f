"""HeteroFL, server side: the mean of each weight over the clients that have it in their part of the network.

Diao, Ding and Tarokh, "HeteroFL", ICLR 2021 (arXiv 2010.01264).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr import (
    Arrays,
    FederationError,
    Member,
    PayloadSpec,
    Roster,
    SplitModel,
    Upload,
    model_arrays,
    parse_width,
)
from strategies.base_models import ModelsStrategy
from strategies.widths import leading_block, part_weights, up

Has = NDArray[np.bool_]


class HeteroFL(ModelsStrategy):
    """Averages parts of one network with different widths, each weight over the clients that have it.

    Algorithm 1: a client of width r has the leading part r of the channels of each layer of the global model, and so
    the leading block of each array of weights. The global model is the widest model of the clients when the run starts.
    Weights that no client in a round has do not change. In the head, a client counts only for its own classes
    (``mask``).

    Wire   down: rate () float32; the leading block of each weight: 4 bytes per weight of the client's model, and 4
           up:   the trained block, and with ``mask`` classes (C,) uint8: 4 bytes per weight, and C
           The same as for training is sent once more for evaluation, and counted as evaluation.
    Needs  one network, of any widths: ``models = "cnn2,cnn2@0.5,cnn2@0.25"``
    State  the global model's weights; rate () float64, its part of the full network's width.
    Robust each weight over the clients that have it, with equal weights. "multikrum" compares uploads on the weights
           that both have: a wrong upload that deviates only where few have weights is close to all others and is kept.
           Dividing by r enlarges the changes of narrow parts. With SGD and without batch norm, the guard may reject
           them: then raise ``outlier-factor``.
    Departs from the paper: widths without a whole number of channels are refused, not rounded up. With all widths 1,
    equal numbers of samples and ``mask = false``, it equals FedAvg, bit for bit, for networks without batch norm.

    Parameters
    ----------
    mask : bool
        As in `clients.heterofl.HeteroFLClient`. Here it restricts averaging of the head to rows of a client's classes.
    """

    heterogeneous = False
    parts = True
    sends = "parts of weights"

    def __init__(self, *, mask: bool = True) -> None:
        super().__init__()
        self.mask = mask

    def check(self, roster: Roster) -> None:
        """Refuse different networks, inputs or classes, and new clients with a model wider than the global one."""
        roster.check_same_network("heterofl")
        for late in self.joining(roster):
            if parse_width(late.model)[1] > parse_width(self._widest)[1]:
                raise FederationError(f"heterofl: {late.model} is wider than the global model, {self._widest}")
        super().check(roster)

    def initial(self, roster: Roster) -> Arrays:
        """Draw the initial weights of the global model, the widest of the clients' models."""
        self._widest = max(self.build(roster), key=lambda name: parse_width(name)[1])
        widest, rate = self.models[self._widest], float(parse_width(self._widest)[1])
        self._names = part_weights(widest).names
        arrays = model_arrays(widest)
        return {"rate": np.array(rate), **{name: arrays[name] for name in self._names}}

    def part(self, model: SplitModel) -> PayloadSpec:
        """Expect the weights of a part of the network, and the client's classes with ``mask``."""
        return up(part_weights(model), model.classes, mask=self.mask)

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the leading block of each weight of the client's model, or nothing to a client that is left out."""
        model = self.models.get(member.model)
        if model is None:
            return {}
        rate = np.array(float(parse_width(member.model)[1]) / server_state["rate"], np.float32)
        blocks = {
            one.name: server_state[one.name][leading_block(one.shape)].copy() for one in part_weights(model).arrays
        }
        return {"rate": rate, **blocks}

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average each weight over the clients that have it."""
        uploads = [upload for upload in uploads if upload.arrays]
        if not uploads:
            return server_state
        sent, has = zip(*(self._stacked(name, server_state[name], uploads) for name in self._names), strict=True)
        kept = self.left_out.kept([one.client_id for one in uploads], sent, has)
        learnt = {"rate": server_state["rate"]}
        for name, values, its in zip(self._names, sent, has, strict=True):
            mean = self.robust.among_kept.weighted(values[kept], [1] * int(kept.sum()), its[kept])
            learnt[name] = np.where(its[kept].any(0), mean, server_state[name])
        return learnt

    def _stacked(self, name: str, array: NDArray[Any], uploads: Sequence[Upload]) -> tuple[NDArray[Any], Has]:
        """Stack an array of all clients (K, ...) in the widest shape, and return which entries each client has."""
        has = np.zeros((len(uploads), *array.shape), bool)
        sent = np.zeros(has.shape, array.dtype)
        for client, one in enumerate(uploads):
            block: tuple[int | slice, ...] = (client, *leading_block(one.arrays[name].shape))
            has[block], sent[block] = True, one.arrays[name]
            if self.mask and name.startswith("head."):
                has[client, one.arrays["classes"] == 0] = False
        return sent, has
