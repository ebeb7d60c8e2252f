"""The local engine: a Grid, the clients of a process, worker processes.

What holds for real nodes as well belongs in ``hetfl_flwr``.
"""
