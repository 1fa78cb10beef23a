"""What one forward costs: rooflines, cost tables, comparisons."""
