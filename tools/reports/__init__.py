"""Developer reports, each a separate program."""
