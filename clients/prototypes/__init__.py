"""Client sides that send the mean embedding of each class; logits and single samples do not belong here."""
