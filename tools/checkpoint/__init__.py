"""Random checkpoints with the shapes of real models."""
