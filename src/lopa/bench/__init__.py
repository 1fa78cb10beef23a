"""Measurements: quality against speed, and our decoder beside a plain eager loop."""
