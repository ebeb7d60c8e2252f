"""Server sides whose clients send the mean logits of each class; logits of single samples do not belong here."""
