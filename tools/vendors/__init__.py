"""Recordings of vendors' libraries, which verify the test stand-ins."""
