"""Studies of many runs: jobs, sweeps, tuning and reproductions; `backends` are where the runs are executed."""
