"""Operators of each dialect for the experts of sparse layers."""

import onnx_ir as ir

from lopa.runtime.bundle.manifest import Dialect


def with_expert_operators(model: ir.Model, dialect: Dialect) -> ir.Model:  # noqa: ARG001
    """Return `model` with operators of the dialect in place of the nodes of experts. Dense models stay unchanged."""
    return model
