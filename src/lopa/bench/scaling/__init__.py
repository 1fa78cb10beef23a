"""Scaling of one request over several devices, measured and modelled."""
