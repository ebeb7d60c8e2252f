"""Representations of the same samples: how alike two are, and what the mean of their kernels takes to send."""
