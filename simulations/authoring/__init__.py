"""Templates for new algorithms; the tests that every algorithm must pass are in `simulations.testing`."""
