"""Callbacks that show a run's rounds, or keep its uploads; none of them changes a run or keeps what it goes on from."""
