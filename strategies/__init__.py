"""Server sides of the algorithms, one file each.

``base`` and ``weights`` are what they build on. Engines, files and data sets do not belong here.
"""
