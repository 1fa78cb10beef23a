"""Holds engines against references."""
