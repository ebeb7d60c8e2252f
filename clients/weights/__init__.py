"""Client sides that send all weights of a model; what sends only some of them stands in `parts`."""
