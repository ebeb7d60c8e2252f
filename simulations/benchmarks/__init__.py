"""Measurements of what the engine costs; figures, and what a hostile client costs the others, are in README.md."""
