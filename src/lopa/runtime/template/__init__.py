"""Chat templates, run in jinja2's sandbox within a budget. This package does not depend on messages or tokens."""
