"""Messages to the clients and what comes back: asked for, awaited, checked once, and set aside where it is wrong.

Nothing here runs a round or knows an algorithm; who the clients are is a `Roster`, however it came about.
"""
