"""Measurements: what the engine costs, and what a hostile client costs the others; figures are in README.md."""
