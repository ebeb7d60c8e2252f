"""Client sides that send embeddings of samples that all know; predictions do not belong here.

Or weights that such embeddings have aligned.
"""
