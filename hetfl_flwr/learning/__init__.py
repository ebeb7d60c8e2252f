"""What algorithms compute with: training, distillation, alignment, aggregation, metrics.

Functions of tensors and models, and what a client is asked for: nothing here sends, stores or reads a file.
"""
