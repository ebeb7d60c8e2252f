"""What there is to run, for ``hetfl list``: facts, their record, and the tables that show them."""
