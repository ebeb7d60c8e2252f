"""A client's surroundings on its node: data, model, state and public samples of others, and the process that it is in.

Nothing here knows which engine runs it, or what an algorithm does.
"""
