"""Building blocks of algorithms: training, distillation, alignment, aggregation and metrics.

They are functions of tensors and models. Nothing here communicates, or reads or writes files.
"""
