"""Server sides whose clients send all weights of a model; what takes only some of them stands in `parts`."""
