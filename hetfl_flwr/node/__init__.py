"""A client's surroundings on its node: data, model, state and public samples of others."""
