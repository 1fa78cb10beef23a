"""Operators of each dialect for the experts of sparse layers."""

import onnx_ir as ir

from lopa.export.graph.expert_masked import MaskedExpertsPass
from lopa.export.graph.expert_split import SplitExpertsPass
from lopa.runtime.bundle.manifest import Dialect


def with_expert_operators(model: ir.Model, dialect: Dialect) -> ir.Model:
    """Return `model` with operators of the dialect in place of the nodes of experts. Dense models stay unchanged.

    Raises onnx_ir.passes.PassError for experts whose matrices are not in the weights file, and for quantized experts in
    the portable dialect.
    """
    replaced = SplitExpertsPass() if dialect == "standard" else MaskedExpertsPass()
    return replaced(model).model
