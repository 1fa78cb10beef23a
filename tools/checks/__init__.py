"""Checks of this project's code and pages: import layers and their diagram, plain English, generated reference."""
