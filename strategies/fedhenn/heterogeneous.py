"""FedHeNN of heterogeneous models, server side: the mean kernel of the clients' representations."""

from collections.abc import Sequence
from logging import INFO
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from hetfl_flwr.common.flower import log
from hetfl_flwr.learning.aggregation import parse_robust
from hetfl_flwr.learning.alignment.similarity import FEWEST_SAMPLES, median_scaled
from hetfl_flwr.models.bounds import check_size
from hetfl_flwr.server.left_out import LeftOut
from hetfl_flwr.server.messaging.member import Member, Sharing
from hetfl_flwr.server.messaging.roster import Roster
from hetfl_flwr.strategy import KnowledgeStrategy, Upload
from hetfl_flwr.wire.samples import Numbers, PublicIndex
from hetfl_flwr.wire.spec import TRAINED_SIZE, Arrays, ArraySpec, Dim, PayloadSpec
from strategies.fedhenn.alignment_set import as_sent, check_enough, draw, sharing_of
from strategies.fedhenn.mean_kernel import Matrix, mean_kernel_factor


def kernel_factor(rows: int | Dim, rank: int | Dim) -> PayloadSpec:
    """Declare a part of what goes down: a factor F (R, r) of a kernel F F^T over R samples."""
    return PayloadSpec((ArraySpec("factor", (rows, rank), "float32"),))


def representations(rows: int | Dim, width: int) -> PayloadSpec:
    """Declare what goes up: what a body makes of R samples, (R, D), not all zero."""
    return PayloadSpec((ArraySpec("representations", (rows, width), "float32", nonzero=True, usual=TRAINED_SIZE),))


class FedHeNN(KnowledgeStrategy):
    """Averages the kernels of what heterogeneous models make of the same unlabelled samples.

    Eq. (5): ``K_mean = sum_j K_j / K`` over the clients of the last round, of their representations of that round's
    alignment set. It travels as a factor F (R, r): ``F F^T`` is K_mean centred, up to scale, and CKA knows neither
    offset nor scale. r is at most R - 1, and for the linear kernel at most the sum of the widths D.
    With ``mode = "homogeneous"`` the server side is `FedHeNNHomogeneous`.

    Wire   down: aligned (R,) int32, factor (R, r) float32, asked (R,) int32: 4 R (r + 2) bytes, in round 1 the 4 R of
           asked alone
           up: representations (R, D) float32: 4 R D bytes
           ``rad = "value"``: aligned and asked are the samples themselves, (R, *shape) as they are stored
           Before round 1 each client sends its public samples, and for ``rad = "index"`` is sent those of all others.
    State  set (), the number of the set that the factor is over, its rows aligned (R, 2) int32 (client, row), factor
           (R, r) float32, kept (), its share of the trace.
    Departs from the paper: clients upload representations, not weights for the server to run. K_mean is centred before
    its rank is cut. The server's work is the eigenvectors of one matrix a round, of size min(R, sum of D) for the
    linear kernel, R for the RBF kernel.

    Parameters
    ----------
    kernel : {"linear", "rbf"}
        Kernel over representations.
    sigma : float
        Width of the RBF kernel, above 0, in units of ``sigma-unit``. As it grows, "rbf" becomes "linear".
    sigma_unit : {"one", "median"}
        "one": the units of the representations. "median": for each network the median distance between its own
        representations of the alignment set, the usual choice for RBF kernels; not in the paper.
    kernels : {"raw", "unit-norm"}
        What Eq. (5) averages. "raw": the kernels, of which that of the network with the largest representations counts
        most. "unit-norm": the kernels, centred, over their Frobenius norms, so that all count alike; not in the paper.
    rad : {"index", "value"}
        How the alignment set travels. "index": row numbers; all clients hold all public samples. "value": the samples;
        only the server holds all public samples.
    rad_size : int
        R, 4 or more (5000 in the paper). Where there are fewer public samples, all of them.
    rank : int
        Columns of the factor at most, 0 or more. 0: as many as an exact factor needs.
    robust : {"none", "median", "trimmed:SHARE", "multikrum:COUNT"}
        How wrong uploads are kept from the mean, as in `hetfl_flwr.learning.aggregation.parse_robust`. "none": not at
        all.
        Kernels are centred and scaled to a Frobenius norm of 1, so that none counts for more by its length, and the
        product of two is their CKA. "median": their geometric median (Pillutla et al., IEEE TSP 2022), a weighted mean
        of them and so a kernel again, which a coordinate-wise median need not be. "trimmed": the mean of those that
        remain when the share that is farthest from it is left out. "multikrum": of those that are nearest to each
        other (Blanchard et al., NIPS 2017). Each holds all kernels at once: 8 K R^2 bytes, 21 MB for ten clients and
        512 rows.

    Raises
    ------
    ConfigError
        ``robust`` is none of these.
    """

    sends = "representations"
    sharing = Sharing(labelled=False)

    def __init__(
        self,
        *,
        kernel: Literal["linear", "rbf"] = "linear",
        sigma: Annotated[float, Field(gt=0)] = 10.0,
        sigma_unit: Literal["one", "median"] = "one",
        kernels: Literal["raw", "unit-norm"] = "raw",
        rad: Literal["index", "value"] = "index",
        rad_size: Annotated[int, Field(ge=FEWEST_SAMPLES)] = 512,
        rank: Annotated[int, Field(ge=0)] = 0,
        robust: str = "none",
    ) -> None:
        self.kernel, self.sigma, self.sigma_unit, self.kernels = kernel, sigma, sigma_unit, kernels
        self.rad, self.rad_size, self.rank = rad, rad_size, rank
        self.robust = parse_robust(robust)
        self._left_out = LeftOut("fedhenn", self.robust)
        self.sharing = sharing_of(rad)

    def check(self, roster: Roster) -> None:
        """Refuse inputs of different shapes, too few public samples, and representations that the server cannot keep.

        Raises
        ------
        FederationError
            Names the clients that differ, how many rows there are, or whose representations are too wide.
        """
        roster.check_sharing("fedhenn", labelled=False)
        rows = check_enough(sum(member.public for member in roster))
        for member in roster:
            check_size(f"fedhenn: the representations of {member}", min(self.rad_size, rows), member.width)

    def initial(self, roster: Roster) -> Arrays:
        """Know no kernel."""
        return _known(1, np.zeros((0, 2), np.int32), np.zeros((0, 0)), 1.0)

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the set to align on, with the factor over it, and the set to represent after training.

        Rows that are in the pool no longer are left out of both; too few are none.
        """
        shared, places = self.roster.public_samples, server_state["aligned"]
        held = PublicIndex.of(shared).held(places)
        held &= held.sum() >= FEWEST_SAMPLES
        return {
            "aligned": as_sent(shared, places[held], self.rad),
            "factor": server_state["factor"][held],
            "asked": as_sent(shared, self._draw(int(server_state["set"]) + 1), self.rad),
        }

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect representations of the set asked for."""
        return representations(min(self.rad_size, len(PublicIndex.of(self.roster.public_samples))), member.width)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average the kernels over the set that was asked for, as a factor."""
        uploaded = [upload.arrays["representations"] for upload in uploads]
        sigma = self.sigma if self.kernel == "rbf" else None
        if sigma and self.sigma_unit == "median":
            uploaded = [median_scaled(torch.from_numpy(one).double()).numpy() for one in uploaded]
        client_ids = [upload.client_id for upload in uploads]
        factor, kept = mean_kernel_factor(
            uploaded,
            self.robust,
            sigma=sigma,
            rank=self.rank,
            unit_norm=self.kernels == "unit-norm",
            told=lambda weights: self._left_out.note(client_ids, weights > 0),
        )
        self._left_out.tell(round)
        if self.rank > 0:
            log(INFO, "fedhenn: a factor of rank %d keeps %.4f of the mean kernel", factor.shape[1], kept)
        number = int(server_state["set"]) + 1
        return _known(number, self._draw(number), factor, kept)

    def _draw(self, number: int) -> Numbers:
        return draw(self.roster.public_samples, self.rad_size, self.config.seed, number)


def _known(number: int, places: NDArray[np.integer[Any]], factor: Matrix, kept: float) -> Arrays:
    """Return what the server knows. The factor's largest entry is 1: float32 holds it, whatever clients have sent."""
    largest = np.abs(factor).max(initial=0.0)
    scaled = factor / largest if largest > 0 else factor
    return {
        "set": np.array(number),
        "aligned": places.astype(np.int32),
        "factor": scaled.astype(np.float32),
        "kept": np.array(kept),
    }
