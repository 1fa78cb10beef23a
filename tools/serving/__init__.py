"""Servers under load: a benchmark over HTTP, and a soak test with misbehaving clients."""
