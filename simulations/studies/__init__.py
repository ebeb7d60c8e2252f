"""Studies of many runs: jobs, sweeps, tuning and reproductions; and of one run's uploads: `audit`, `accounting`.

They do not depend on how a single run is executed.
"""
