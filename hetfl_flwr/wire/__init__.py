"""What crosses between clients and server: payload specifications, their coding, messages, names and privacy."""
