"""Client sides of the algorithms, one file each. ``base_`` files are shared."""
