"""The local engine, the ``hetfl`` command, recipes, reports and plots."""
