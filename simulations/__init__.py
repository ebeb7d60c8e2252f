"""The local engine, the ``hetfl`` command, studies of many runs, and reports."""
