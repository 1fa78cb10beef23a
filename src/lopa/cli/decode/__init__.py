"""The commands that decode: generate and chat, and what they show and record."""
