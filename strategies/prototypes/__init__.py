"""Server sides whose clients send the mean embedding of each class; logits and single samples do not belong here."""
