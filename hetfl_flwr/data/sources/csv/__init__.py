"""Tables that are text files: how one is written, and what its first line says."""
