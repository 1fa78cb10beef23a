"""Evaluation: question sets, accuracy bounds of parallel decoding, and bundles as lm-eval models."""
