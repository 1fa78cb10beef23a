"""Chat templates, run on jinja's syntax tree within a budget of operations. This package does not depend on
tokenizers."""
