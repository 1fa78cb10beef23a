"""Forwards with correct results, saved so that Polygraphy can run them again (docs/how-to/engines.md)."""
