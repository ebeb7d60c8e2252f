"""Measurements: accuracy over bytes, hostile clients, audits, kills, speed; most figures stand in README.md beside this.

Nothing but tests imports them.
"""
