"""The command lopa-export, one file a command.

Imports the runtime at once, torch only inside the commands that export.
"""
