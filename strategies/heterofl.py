"""HeteroFL, server side: each weight is the mean over the clients whose part of the network has it.

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
    """Averages parts of one network of different width, each weight over those clients that have it.

    Algorithm 1: a client of width r has the leading part r of the channels of each layer, and so the leading block of
    each array of weights, of the global model: the widest of the clients' when the run begins. What no client of a
    round has stays as it is. In the head a client counts for the rows of its own classes (``mask``).

    Wire   down: rate () float32; the leading block of each weight: 4 bytes a weight of the client's own model, and 4
           up:   the trained block, and with ``mask`` classes (C,) uint8: 4 bytes a weight, and C
           When clients are evaluated they are sent the same as for training once more, which is counted as evaluation.
    Needs  one network, of any widths: ``models = "cnn2,cnn2@0.5,cnn2@0.25"``
    State  the global model's weights; rate () float64, its part of the width of the network that it is named after.
    Robust each weight over the clients that have it, each alike. "multikrum" compares uploads where both have weights:
           who lies where few have weights is near to all others and stays.
    Departs from the paper: widths that leave no whole number of channels are refused, not rounded up. With all widths
    1, as many samples each and ``mask = false`` it is FedAvg to the bit, of networks without batch norm.

    Parameters
    ----------
    mask : bool
        As in `clients.heterofl.HeteroFLClient`; here: whose rows of the head are averaged.
    """

    heterogeneous = False
    parts = True
    sends = "parts of weights"

    def __init__(self, *, mask: bool = True) -> None:
        super().__init__()
        self.mask = mask

    def check(self, roster: Roster) -> None:
        """Refuse models of different networks, other inputs or classes, and who joins with a wider model than all."""
        roster.check_same_network("heterofl")
        for late in self.joining(roster):
            if parse_width(late.model)[1] > parse_width(self._widest)[1]:
                raise FederationError(f"heterofl: {late.model} is wider than the global model, {self._widest}")
        super().check(roster)

    def initial(self, roster: Roster) -> Arrays:
        """Draw the global model's initial weights: of the widest client's model."""
        self._widest = max(self.build(roster), key=lambda name: parse_width(name)[1])
        widest, rate = self.models[self._widest], float(parse_width(self._widest)[1])
        self._names = part_weights(widest).names
        arrays = model_arrays(widest)
        return {"rate": np.array(rate), **{name: arrays[name] for name in self._names}}

    def part(self, model: SplitModel) -> PayloadSpec:
        """Expect the weights of a part of the network, and with ``mask`` the client's classes."""
        return up(part_weights(model), model.classes, mask=self.mask)

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the leading block of each weight that the client's model has; to one left out nothing."""
        model = self.models.get(member.model)
        if model is None:
            return {}
        rate = np.array(float(parse_width(member.model)[1]) / server_state["rate"], np.float32)
        blocks = {
            one.name: server_state[one.name][leading_block(one.shape)].copy() for one in part_weights(model).arrays
        }
        return {"rate": rate, **blocks}

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average each weight over those that have it."""
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
        """Return an array of all clients (K, ...), in the shape of the widest, and which of its entries each has."""
        has = np.zeros((len(uploads), *array.shape), bool)
        sent = np.zeros(has.shape, array.dtype)
        for one, its, values in zip(uploads, has, sent, strict=True):
            block = leading_block(one.arrays[name].shape)
            its[block], values[block] = True, one.arrays[name]
            if self.mask and name.startswith("head."):
                its[one.arrays["classes"] == 0] = False
        return sent, has
