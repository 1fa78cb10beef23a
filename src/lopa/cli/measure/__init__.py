"""The command bench and its subcommands, a module each."""
