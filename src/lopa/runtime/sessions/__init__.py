"""The Session protocol, and sessions with caches in host memory."""
