"""One run on disk: its records, checkpoints, models and trackers."""
