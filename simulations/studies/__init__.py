"""Many runs: jobs, sweeps, reproductions.

How one run goes does not belong here.
"""
