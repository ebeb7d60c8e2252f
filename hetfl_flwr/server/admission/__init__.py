"""Who is taken into the federation: which nodes are here, who they say they are, and when the run may begin.

Also who of them trains in a round. Nothing here knows what is said in one, or of what clients learn.
"""
