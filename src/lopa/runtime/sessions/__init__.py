"""The Session protocol, and sessions with their caches in the host's memory."""
