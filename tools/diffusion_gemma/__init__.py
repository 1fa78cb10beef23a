"""Tiny trained checkpoints of DiffusionGemma, and recordings of transformers' generate on them."""
