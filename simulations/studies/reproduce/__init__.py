"""Reproduction of the tables and figures of papers: one recipe each, run over seeds and compared with the paper."""
