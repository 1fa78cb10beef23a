"""Forwards with their right answers, written so that Polygraphy can run them again (docs/how-to/engines.md)."""
