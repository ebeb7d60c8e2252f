"""Server sides of the algorithms, one file each; ``base_`` files are what several build on."""
