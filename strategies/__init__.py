"""Server sides of the algorithms, one file each. Files ``base_*``, mean_kernel, prototypes and widths are shared."""
