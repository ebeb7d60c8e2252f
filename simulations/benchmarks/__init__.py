"""Benchmarks of the local engine; README.md has their figures."""
