"""Tables, plots and HTML pages of runs. Nothing here runs a federation or writes to a run folder."""
