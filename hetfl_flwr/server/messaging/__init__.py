"""Messages to the clients and what comes back: asked for, awaited, checked once, and set aside where it is wrong.

Nothing here knows of rounds or of an algorithm; who the clients are is a `Roster`, however it came about.
"""
