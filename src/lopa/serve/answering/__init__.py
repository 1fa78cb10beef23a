"""Answers to checked requests: capacity check, submission to the engine, complete replies and streams."""
