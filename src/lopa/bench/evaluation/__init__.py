"""Evaluation: question sets, and accuracy bounds of parallel decoding."""
