"""Requests around the loop: answers, events, handles, the pool, stored prompts."""
