"""Ascend engines, run by pyACL."""
