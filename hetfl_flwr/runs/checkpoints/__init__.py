"""Checkpoints on disk, written, read and judged; when they are written and taken up is decided elsewhere."""
