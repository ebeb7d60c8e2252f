"""Many runs: jobs, sweeps, tuning, reproductions; and what the uploads of one give away: `audit`, `accounting`.

How one run goes does not belong here.
"""
