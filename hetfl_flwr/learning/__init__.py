"""What algorithms compute with: training, distillation, alignment, aggregation, metrics."""
