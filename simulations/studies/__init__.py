"""Many runs: jobs, sweeps, tuning, reproductions.

How one run goes does not belong here.
"""
