"""A single run: its resolved config, and its records, checkpoints and trackers.

Independent of training and communication. Comparisons of several runs belong in ``simulations``.
"""
