"""What clients and server exchange: payload specifications, their coding, messages, names and privacy.

Independent of the algorithms, each of which declares its own payloads.
"""
