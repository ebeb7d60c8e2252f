"""FedHeNN, server side: the mean kernel of the clients' representations, or the mean of their weights.

Makhija, Han, Ho and Ghosh, "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022.

Clients align on a set of unlabeled samples (RAD): R of the clients' public samples, drawn again in each round.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hetfl_flwr import (
    MIN_ALIGNED,
    TRAINED_SIZE,
    Arrays,
    ArraySpec,
    Dim,
    FederationError,
    KnowledgeStrategy,
    Member,
    PayloadSpec,
    PublicIndex,
    Roster,
    Sharing,
    Upload,
    WeightStrategy,
    check_size,
    generator,
)
from strategies.mean_kernel import Matrix, mean_kernel_factor

RadSize = Annotated[int, Field(ge=MIN_ALIGNED)]


def kernel_factor(rows: int | Dim, rank: int | Dim) -> PayloadSpec:
    """Declare a part of the download: a factor F (R, r) of a kernel F F^T over R samples."""
    return PayloadSpec((ArraySpec("factor", (rows, rank), "float32"),))


def representations(rows: int | Dim, width: int) -> PayloadSpec:
    """Declare the upload: the representations of R samples, (R, D), not all zero."""
    return PayloadSpec((ArraySpec("representations", (rows, width), "float32", nonzero=True, usual=TRAINED_SIZE),))


def draw(index: PublicIndex, size: int, seed: int, number: int) -> NDArray[np.int64]:
    """Draw an alignment set, and return the places (R, 2) of its rows."""
    total = check_enough(len(index))
    return index.places(generator(seed, number, "rad").choice(total, min(size, total), replace=False))


def check_enough(rows: int) -> int:
    """Return the number of public samples; raise FederationError if they are too few for alignment."""
    if rows < MIN_ALIGNED:
        raise FederationError(
            f"fedhenn needs {MIN_ALIGNED} public samples or more for alignment, but all clients together have {rows}: "
            "raise public-fraction"
        )
    return rows


class FedHeNN(KnowledgeStrategy):
    """Averages the kernels of heterogeneous models' representations of the same unlabeled samples.

    Eq. (5): ``K_mean = sum_j K_j / K`` over the clients of the last round and their representations of its alignment
    set. It is sent as a factor F (R, r): ``F F^T`` is the centered K_mean up to scale, and CKA is invariant to offset
    and scale. r is at most R - 1, and at most the sum of the widths D.
    With ``mode = "homogeneous"`` the server side is `FedHeNNHomogeneous`.

    Wire   down: aligned (R,) int32, factor (R, r) float32, asked (R,) int32: 4 R (r + 2) bytes; in round 1 only asked,
           4 R bytes
           up: representations (R, D) float32: 4 R D bytes
           Before round 1 each client sends its public samples, and receives those of all others.
    State  set (), the number of the factor's alignment set; aligned (R, 2) int32, its rows (client, row); factor
           (R, r) float32.
    Robust kernels, centered and scaled to a Frobenius norm of 1, as points: their geometric median (Pillutla et al.,
           IEEE TSP 2022) is a kernel again; a coordinate-wise median may not be one. All kernels are in memory at once:
           8 K R^2 bytes.
    Departs from the paper: clients upload representations, instead of weights that the server runs. In each round, the
    server computes the eigenvectors of one matrix of size min(R, sum of D). Kernels are linear; the paper reports
    similar accuracy with RBF kernels.

    Parameters
    ----------
    rad_size : int
        R, the number of public samples of a round, 4 or more (5000 in the paper). If there are fewer, all are used.
    """

    sends = "representations"
    averages = True
    sharing = Sharing(labelled=False)

    def __init__(self, *, rad_size: RadSize = 512) -> None:
        self.rad_size = rad_size

    def check(self, roster: Roster) -> None:
        """Refuse inputs of different shapes, too few public samples, and representations too large for the server."""
        roster.check_sharing("fedhenn", labelled=False)
        rows = check_enough(sum(member.public for member in roster))
        for member in roster:
            check_size(f"fedhenn: the representations of {member}", min(self.rad_size, rows), member.width)

    def initial(self, roster: Roster) -> Arrays:
        """Return a state without a kernel."""
        return _state(1, np.zeros((0, 2), np.int32), np.zeros((0, 0)))

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the alignment set with its factor, and the set to represent after training.

        Rows that are no longer in the pool are left out of both. If too few remain for alignment, all are left out.
        """
        places, index = server_state["aligned"], PublicIndex.of(self.roster.public_samples)
        held = index.held(places)
        held &= held.sum() >= MIN_ALIGNED
        return {
            "aligned": index.numbers(places[held]).astype(np.int32),
            "factor": server_state["factor"][held],
            "asked": index.numbers(self._draw(int(server_state["set"]) + 1)).astype(np.int32),
        }

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect representations of the requested set."""
        return representations(min(self.rad_size, len(PublicIndex.of(self.roster.public_samples))), member.width)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average the kernels over the requested set, as a factor."""
        client_ids = [upload.client_id for upload in uploads]
        factor = mean_kernel_factor(
            [upload.arrays["representations"] for upload in uploads],
            self.robust,
            on_weights=lambda weights: self.left_out.note(client_ids, weights > 0),
        )
        number = int(server_state["set"]) + 1
        return _state(number, self._draw(number), factor)

    def _draw(self, number: int) -> NDArray[np.int64]:
        return draw(PublicIndex.of(self.roster.public_samples), self.rad_size, self.config.seed, number)


class FedHeNNHomogeneous(WeightStrategy):
    """Averages the weights of equal models, and draws the samples on which clients align with the global model.

    Eq. (4): the mean of the clients' weights, weighted by numbers of training samples, as in FedAvg.

    Wire   down: the weights, aligned (R,) int32: 4 bytes per parameter and running statistic, and 4 R
           up: the weights
           Before round 1 each client sends its public samples, and receives those of all others.
    Needs  one model
    State  the global model.

    Parameters
    ----------
    rad_size
        As in `FedHeNN`.
    """

    sharing = Sharing(labelled=False)

    def __init__(self, *, rad_size: RadSize = 512) -> None:
        super().__init__()
        self.rad_size = rad_size

    def check(self, roster: Roster) -> None:
        """Refuse heterogeneous models, inputs of different shapes, and too few public samples."""
        roster.check_sharing("fedhenn", labelled=False)
        super().check(roster)
        check_enough(sum(member.public for member in roster))

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the weights and the alignment set."""
        index = PublicIndex.of(self.roster.public_samples)
        places = draw(index, self.rad_size, self.config.seed, round)
        return {**server_state, "aligned": index.numbers(places).astype(np.int32)}


MODES = {"heterogeneous": FedHeNN, "homogeneous": FedHeNNHomogeneous}
"""The server side in each mode; the first is the default."""


def _state(number: int, places: NDArray[np.integer[Any]], factor: Matrix) -> Arrays:
    """Return the server state, with the factor scaled to a largest entry of 1, so that it does not overflow float32."""
    largest = np.abs(factor).max(initial=0.0)
    scaled = factor / largest if largest > 0 else factor
    return {
        "set": np.array(number),
        "aligned": places.astype(np.int32),
        "factor": scaled.astype(np.float32),
    }
