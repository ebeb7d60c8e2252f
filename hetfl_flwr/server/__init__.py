"""The server of a federation: who takes part, what they are sent and answer, and how rounds are run."""
