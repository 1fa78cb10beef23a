"""Developer reports, each a program of its own."""
