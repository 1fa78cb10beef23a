"""Web page at `GET /` that shows how a model unmasks blocks."""
