"""What can be read from what clients send, measured: the attacks that an honest-but-curious server could run.

`subject` is one client under attack, `readings` what its payload is to an attacker, and `imitation` how an attacker
trains and sends as a client does. `membership`, `labels` and `pictures` are the attacks, `measures` says what they have
found, and `report` runs all that fit and writes the findings down.
"""
