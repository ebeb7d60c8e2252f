"""A client's surroundings on its node: data, model, state and public samples of others.

Nothing here knows which engine runs it, what an algorithm does, or what other clients have.
"""
