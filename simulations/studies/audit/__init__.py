"""Audit of uploads: attacks of an honest-but-curious server, and how much they find.

`subject` is one client under attack, `readings` what its payload is to an attacker, and `imitation` how an attacker
trains and sends as a client does. `membership`, `labels` and `pictures` are the attacks, `measures` says what they have
found, and `report` runs all that fit and writes the findings down.
"""
