"""Fixtures that write a model repository for Triton and load a model as Triton does."""

from tests.serve.triton.conftest import load_model, write_model

__all__ = ["load_model", "write_model"]
