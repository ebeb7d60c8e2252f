"""Who is taken into the federation: which nodes are here, who they say they are, and when the run may begin.

Nothing here knows of rounds or of what clients learn.
"""
