"""The page at `GET /`, on which one sees a model fill in blocks."""
