"""LoPA's loop and its stages, pure functions of arrays (docs/decoding.md)."""
