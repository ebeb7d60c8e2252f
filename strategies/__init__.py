"""Server sides of the algorithms, in folders by what leaves a client: one file each, or one for each mode.

A module ``base`` is what those beside it and below build on. Engines, files and data sets do not belong here.
"""
