"""The commands that decode: generate, chat and serve."""
