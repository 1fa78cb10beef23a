"""Recordings of vendors' libraries, which the stand-ins of the tests are held against."""
