"""What people read of runs: tables, plots, pages.

Nothing here runs anything, or writes to a run folder.
"""
