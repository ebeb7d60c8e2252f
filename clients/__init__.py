"""Client sides of the algorithms, one file each, or one for each mode.

``base`` and ``weights`` are what they build on. Engines, files and data sets do not belong here.
"""
