"""Many runs: jobs, sweeps, tuning, reproductions; and `audit`, which attacks the uploads of one.

How one run goes does not belong here.
"""
