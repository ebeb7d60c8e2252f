"""A client on its node: data, model, state, public samples of other clients, and the process.

Nothing here depends on the engine or the algorithm.
"""
