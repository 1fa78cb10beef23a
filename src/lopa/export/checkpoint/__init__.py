"""Files of a checkpoint, read and checked: config, tensors, adapter, tokenizer."""
