"""Tests of `simulations.authoring.skeleton`: the contract of every algorithm, and results from its paper."""

import numpy as np

from hetfl_flwr import AlgorithmContract, Lab, Upload

from .strategy import Skeleton


class TestSkeleton(AlgorithmContract):
    """The contract and more tests. The fixture ``lab`` builds federations."""

    algorithm = "simulations.authoring.skeleton"

    def test_the_server_by_hand(self) -> None:
        """One class, seen 3 times by one client and once by another: (3 * 2 + 1 * 6) / 4 = 3."""
        nothing = {"logits": np.zeros((1, 1), np.float32), "known": np.array([False])}
        first = {"logits": np.array([[2]], np.float32), "counts": np.array([3])}
        second = {"logits": np.array([[6]], np.float32), "counts": np.array([1])}
        after = Skeleton().aggregate(nothing, [Upload(0, first, 3), Upload(1, second, 1)], 1)
        assert (after["logits"].tolist(), after["known"].tolist()) == ([[3.0]], [True])

    def test_the_download(self, lab: Lab) -> None:
        """The download is the whole server state."""
        federation = lab.federation(lab.config(algorithm=self.algorithm))
        member, state = next(iter(federation.roster)), Skeleton().initial(federation.roster)
        assert Skeleton().download_for(member, state, 1) == state
