"""Client sides of the algorithms, one file each."""
