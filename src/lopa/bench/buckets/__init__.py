"""The planner of buckets."""
