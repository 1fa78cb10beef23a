"""Builds engines with Ascend's ATC."""
