"""How the program behaves whatever the command: signals, streams, verbosity, help."""
