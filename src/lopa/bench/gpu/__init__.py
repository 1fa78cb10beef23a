"""GPU report."""
