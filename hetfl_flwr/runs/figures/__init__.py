"""Figures of a run beyond accuracy, and how figures look in a terminal; nothing here writes to a run folder."""
