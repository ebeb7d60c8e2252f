"""Server sides of the algorithms, one file each. Files ``base_*``, ensembles, mean_kernel and widths are shared."""
