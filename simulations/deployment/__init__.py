"""Deployment: keys, Flower's own processes on one machine, and a rehearsal of the guide beside this.

What a node or a server needs to run belongs in ``hetfl_flwr``.
"""
