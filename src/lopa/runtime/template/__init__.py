"""Chat templates: jinja's syntax tree walked within a budget of operations. Knows no tokenizer."""
