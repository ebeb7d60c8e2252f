"""The local engine: a Grid, its clients and its worker processes.

Code that real nodes need, too, belongs in ``hetfl_flwr``.
"""
