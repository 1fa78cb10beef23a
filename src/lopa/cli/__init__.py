"""The command lopa-export, one file a command.

Imports a command when it is asked for, and torch only inside those that export.
"""
