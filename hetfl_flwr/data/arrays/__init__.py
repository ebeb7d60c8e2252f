"""Samples in memory, and what is done to them there. Nothing here knows where they come from."""
