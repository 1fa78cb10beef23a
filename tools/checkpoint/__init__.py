"""Random checkpoints of a real model's shapes."""
