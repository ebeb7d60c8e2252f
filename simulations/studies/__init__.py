"""Studies of several runs: jobs, sweeps, tuning, reproductions; and of the uploads of one: `audit`, `accounting`.

Independent of how a single run is executed.
"""
