"""Deployment: keys, checks before a node joins, a warm SuperNode, and a rehearsal on one machine.

What the app itself needs on a server or a node belongs in ``hetfl_flwr``.
"""
