"""Deployment: keys, Flower's own processes on one machine, and a rehearsal of the guide beside this."""
