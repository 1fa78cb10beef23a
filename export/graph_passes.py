"""Passes over a traced graph. Does not know the model."""

import onnx_ir as ir
import onnxscript.optimizer
from onnx_ir.passes import common


def tidy(model: ir.Model) -> ir.Model:
    """Fold what is constant, share what is equal, drop what is unused."""
    onnxscript.optimizer.fold_constants(model)
    return ir.passes.Sequential(
        common.CommonSubexpressionEliminationPass(),
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.ClearMetadataAndDocStringPass(),
    )(model).model
