"""Callbacks that show a run's rounds to people and to trackers; none of them changes a run or keeps what it needs."""
