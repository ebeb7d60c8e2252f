"""Where the runs of a study happen: in processes of this machine, or on a Ray cluster. What runs there is in `work`."""
