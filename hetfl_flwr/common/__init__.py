"""Utilities for all modules: files, notices, packages, versions, arithmetic, Flower. No training code."""
