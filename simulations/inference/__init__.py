"""Use a client's trained model: export and prediction."""
