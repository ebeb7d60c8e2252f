"""The server's side of a run: who takes part, the rounds, and what replies are worth."""
