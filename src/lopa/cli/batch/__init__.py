"""Decoding of files of prompts: line by line, several requests at a time, with resume."""
