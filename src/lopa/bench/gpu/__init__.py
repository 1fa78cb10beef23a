"""Measurements on a GPU and their report."""
