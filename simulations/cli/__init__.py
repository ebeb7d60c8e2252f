"""The ``hetfl`` command: one module for each group of subcommands. The work itself is done outside this package."""
