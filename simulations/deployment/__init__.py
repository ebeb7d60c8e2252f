"""Flower's own processes on one machine."""
