"""Many runs: jobs, sweeps, reproductions."""
