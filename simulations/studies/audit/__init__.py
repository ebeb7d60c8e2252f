"""What can be read from what clients send, measured: the attacks that an honest-but-curious server could run.

`subject` is one client as it is attacked, `readings` say what a payload is to an attacker, and the attacks are a module
for each family: `membership`, `histogram`, `reconstruction`. `meter` runs those that fit, `report` writes them down.
"""
