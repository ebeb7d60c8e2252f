"""A start for an algorithm of one's own; the contract that it is tested by is in `simulations.testing`."""
