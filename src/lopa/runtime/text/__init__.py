"""Text to token IDs and back: tokenizer, chat template and streaming. This package does not depend on sessions."""
