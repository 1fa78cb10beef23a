"""A checkpoint's files, read and checked: config, tensors, adapter, tokenizer."""
