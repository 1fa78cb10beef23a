"""Text to ids and back: tokenizer, chat template, streaming. Knows no session."""
