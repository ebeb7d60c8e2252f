"""One run: its resolved config, and on disk its records, checkpoints, models and trackers.

Independent of training and communication; comparisons of several runs belong in ``simulations``.
"""
