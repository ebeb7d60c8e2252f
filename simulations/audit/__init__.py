"""Audit of a run's uploads: attacks of an honest-but-curious server, and how much they reveal.

`subject` is the client under attack, `readings` how its payload is read, and `imitation` how clients are imitated. The
attacks are `membership`, `labels` and `pictures`; `measures` has their findings, and `report` runs them all.
`accounting` has what noise guarantees against any attack.
"""
