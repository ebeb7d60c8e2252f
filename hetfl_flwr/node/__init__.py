"""A client's surroundings on its node: data, model, state and public samples of others, and the process that it is in.

Nothing here knows which engine runs it, what an algorithm does, or what other clients have.
"""
