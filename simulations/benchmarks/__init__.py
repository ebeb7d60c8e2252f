"""Measurements of the engines; the figures stand in README.md beside this file.

Nothing imports them.
"""
