"""Measured scaling of one request over several devices."""
