"""Planner of shape buckets."""
