"""Measurements: accuracy over bytes, hostile clients, kills, speed; the figures stand in README.md beside this file.

Nothing but tests imports them.
"""
