"""The server of a federation: registration of clients, messages to and from them, and rounds."""
