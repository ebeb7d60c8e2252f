"""The local engine: a Grid, the clients of a process, worker processes."""
