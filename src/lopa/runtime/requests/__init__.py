"""Requests around the decoding loop: answers, events, handles, the pool and its prefix cache."""
