"""Building blocks of algorithms: training, distillation, alignment, aggregation, metrics.

Functions of tensors and models; nothing here communicates, or reads or writes files.
"""
