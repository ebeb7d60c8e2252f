"""What crosses between clients and server: payload specifications, their coding, messages, names and privacy.

No algorithm is named here: each declares its own payloads.
"""
