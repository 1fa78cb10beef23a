"""Which tensors a bundle holds, and writing them."""
