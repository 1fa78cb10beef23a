"""Call the plugins through TensorRT's real Python bindings, as the library does when it builds an engine.

The program takes the FOLDER of the bindings, and shapes as JSON. It replaces only the library's parts: the registry of
plugins, and symbolic sizes, which here are numbers. It prints the outputs, combinations of types and launches of every
plugin as JSON.
"""

import json
import operator
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tools.vendors.record_tensorrt_api import bindings_over_stand_ins

trt: Any = bindings_over_stand_ins(Path(sys.argv[1]))
sys.modules["tensorrt"] = trt
trt.get_plugin_registry = lambda: SimpleNamespace(register_creator=lambda *_: True, get_creator=lambda *_: None)

from tensorrt.plugin import _lib, _tensor  # noqa: E402

from lopa.plugins.tensorrt_plugins import register_plugins  # noqa: E402

_OPERATIONS = {
    "SUM": operator.add,
    "PROD": operator.mul,
    "SUB": operator.sub,
    "MIN": min,
    "MAX": max,
    "FLOOR_DIV": operator.floordiv,
    "CEIL_DIV": lambda a, b: -(-a // b),
}


class Number(trt.IDimensionExpr):  # type: ignore[misc]
    """A size. pybind11 allows no construction from Python, so `of` bypasses the constructor."""

    value: int

    @staticmethod
    def of(value: int) -> "Number":
        number: Number = Number.__new__(Number)
        number.value = value
        return number


_BUILDER = SimpleNamespace(
    constant=Number.of,
    operation=lambda operation, a, b: Number.of(_OPERATIONS[operation.name](a.value, b.value)),
)


def main() -> None:
    """Register the plugins, and make TensorRT's calls of each."""
    register_plugins((9, 0))
    answers = {}
    for name, tensors in json.loads(sys.argv[2]).items():
        plugin = _lib.QDP_REGISTRY[f"lopa::{name}"]
        _tensor.SymIntExpr._exprBuilder = _BUILDER
        inputs = [_descriptor(shape, dtype) for shape, dtype in tensors]
        outputs = plugin.register_func(*inputs)  # with symbolic sizes only
        shapes = [[_value(size) for size in output.shape_expr] for output in outputs]
        for tensor, shape in zip((*inputs, *outputs), ([shape for shape, _ in tensors] + shapes), strict=True):
            tensor.shape = _tensor.Shape(tuple(shape))
        combinations = plugin.autotune_func(*inputs, outputs)
        kernel, ptx, launch, numbers = plugin.aot_impl_func(*inputs, outputs, 0)
        sizes = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_mem")
        answers[name] = {
            "outputs": [[shape, output.dtype.name] for shape, output in zip(shapes, outputs, strict=True)],
            "combinations": sorted({len(each.types) for one in combinations for each in one._get_combinations()}),
            "count": sum(len(one._get_combinations()) for one in combinations),
            "kernel": kernel.decode(),
            "parameters": ptx.decode().split(".entry")[1].split(")")[0].count(".param"),
            "launch": {size: _value(getattr(launch, size)) for size in sizes},
            "numbers": [_value(number) for number in numbers],
        }
    print(json.dumps(answers))


def _descriptor(shape: list[int], dtype: str) -> Any:
    expressions = _tensor.ShapeExprs.from_tuple(tuple(_tensor.ShapeExpr(Number.of(size)) for size in shape))
    return _tensor.TensorDesc(expressions, getattr(trt, dtype))


def _value(symbol: Any) -> int:
    found: int = symbol._expr.value
    return found


if __name__ == "__main__":
    main()
