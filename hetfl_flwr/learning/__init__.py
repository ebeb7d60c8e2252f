"""What algorithms compute with: training, distillation, alignment, aggregation, metrics.

Pure functions of tensors: nothing here sends, stores or reads a file.
"""
