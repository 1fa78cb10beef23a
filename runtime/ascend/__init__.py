"""Ascend engines by pyACL."""
