"""One run: its config as it holds, and on disk its records, checkpoints, models and trackers.

Nothing here decides what is trained or sent; what compares several runs belongs in ``simulations``.
"""
