"""Measurements: accuracy over bytes, hostile clients, audits, kills, speed; most figures are in README.md beside this.

Nothing but tests imports them.
"""
