"""Measurements of quality, speed, costs and scaling, and the comparison with an eager PyTorch loop."""
