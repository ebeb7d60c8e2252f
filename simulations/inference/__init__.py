"""What a client's trained model is good for: a program of its own, and predictions; nothing here trains."""
