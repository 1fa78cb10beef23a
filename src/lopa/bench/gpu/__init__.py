"""The GPU report."""
