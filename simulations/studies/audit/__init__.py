"""What can be read from what clients send, measured: the attacks that an honest-but-curious server could run.

`subject` is one client as it is attacked, `sent` what it has sent, and `readings` what a payload is to an attacker.
`attacks` has what can be run; `histogram` and `reconstruction` are two of them, `training` what they imitate.
`measures` scores them, and `report` writes them down.
"""
