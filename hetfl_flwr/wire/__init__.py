"""What clients and server exchange: payload specifications and their encoding, messages, names and privacy.

Nothing here depends on the algorithm: each one declares its own payloads.
"""
