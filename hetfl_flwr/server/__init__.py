"""The server's side of a run: who takes part, what is said to clients and comes back, and the rounds.

No algorithm is named here, and nothing trains.
"""
