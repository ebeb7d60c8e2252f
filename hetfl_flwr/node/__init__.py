"""A client on its node: data, model, state, others' public samples, and the process.

Independent of the engine and of the algorithm.
"""
