"""What the engines cost, in seconds, bytes and memory; `simulations.benchmarks.measure` makes the tables.

No library code is here, and nothing but tests imports them.
"""
