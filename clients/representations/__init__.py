"""Client sides that send embeddings of samples that all know, or weights that
these have aligned; predictions do not belong here."""
