"""Server sides of the algorithms, one file each. ``base_`` files, and ensembles, mean_kernel and widths, are shared."""
