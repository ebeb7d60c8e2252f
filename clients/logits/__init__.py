"""Client sides that send the mean logits or scores of each class; those of single
samples do not belong here."""
