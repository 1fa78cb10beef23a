"""Reports for developers, each a program of its own."""
