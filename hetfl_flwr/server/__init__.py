"""The server's side of a run: the federation and its rounds.

Who takes part is settled in `hetfl_flwr.server.admission`, and what is said to clients in `hetfl_flwr.server.messaging`;
neither knows of the rounds. No algorithm is named here, and nothing trains.
"""
