"""Costs of one forward: rooflines, cost tables and comparisons of engines."""
