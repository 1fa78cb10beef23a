"""Forwards with their right answers, written so that Polygraphy can run them again (docs/polygraphy.md)."""
