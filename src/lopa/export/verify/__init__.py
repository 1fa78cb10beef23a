"""Verification of engines against references."""
