"""Marks of the reasoning that a model writes before its answer. This module does not depend on tokens."""

OPENING, CLOSING = "<think>", "</think>"
"""Marks before and behind the reasoning."""
