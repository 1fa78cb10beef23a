"""Behaviour of the program that does not depend on the command: signals, streams, verbosity, help, option names."""
