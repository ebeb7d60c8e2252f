"""The server's side of a run: the federation and its rounds.

Who takes part is settled in ``admission``, and what is said to clients in ``messaging``; neither runs a round.
No algorithm is named here, and nothing trains.
"""
