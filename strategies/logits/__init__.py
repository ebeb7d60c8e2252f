"""Server sides whose clients send the mean logits or scores of each class; not those of single samples."""
