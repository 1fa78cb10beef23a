"""Shapes and types that engines receive match a forward's arrays, in both dialects."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.runtime.random_windows import random_batch

from lopa.runtime.accelerator.device_forward import GraphArrays
from lopa.runtime.accelerator.graph_form import ContractForm, GraphForm, PortableForm
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import ROTARY_COS, input_names, output_names, window_names
from lopa.runtime.contract.portable_form import PAST, portable_input_names
from lopa.runtime.contract.rotary import RotaryAngles, with_rotary_names
from lopa.runtime.contract.sizes import Sizes

SIZES = Sizes(2, 3, 16, 128, 5)
ANGLES = RotaryAngles(32, 10000.0)


@pytest.mark.parametrize(
    ("dialect", "form", "names", "wanted", "rows"),
    [
        ("standard", ContractForm(), input_names(5), (2, 3, 5), (2, 3, 2, 16, 32)),
        ("portable", PortableForm(), portable_input_names(), (30,), (2, 2, 48, 32)),
        ("standard", ContractForm(ANGLES), with_rotary_names(input_names(5)), (2, 3, 5), (2, 3, 2, 16, 32)),
        ("portable", PortableForm(ANGLES), portable_input_names(with_rotary=True), (30,), (2, 2, 48, 32)),
    ],
)
def test_shapes_and_types_match_the_form(
    tiny_bundle: Path, dialect: str, form: GraphForm, names: list[str], wanted: tuple[int, ...], rows: tuple[int, ...]
) -> None:
    takes = [dialect] if ROTARY_COS in names else []
    manifest = msgspec.structs.replace(
        Bundle.open(tiny_bundle).manifest, dialect=dialect, dtype="float16", rotary_inputs=takes
    )
    arrays = GraphArrays(manifest)
    inputs, outputs = arrays.inputs(SIZES), arrays.outputs(SIZES)
    assert list(inputs) == names
    assert list(outputs) == output_names(5, with_logits=False)
    batch = random_batch(np.random.default_rng(0), (4, 7), 3, 16, 5)
    inputs_of_form: dict[str, Any] = form.inputs(batch, np.ones((2, 128), np.bool_))
    for name, array in inputs_of_form.items():
        assert (inputs[name].shape, inputs[name].dtype) == (array.shape, array.dtype), name
    past = {name: each for name, each in inputs.items() if name not in inputs_of_form}
    for each in past.values():
        assert each.shape == ((10, 4, 128, 32) if PAST in past else (2, 2, 128, 32))
        assert each.dtype == np.float16
    assert outputs["topk_ids"].shape == (*wanted, 8)
    assert outputs["entropy"].shape == wanted
    assert {(outputs[name].shape, outputs[name].dtype.name) for name in window_names(5)} == {(rows, "float16")}
    assert arrays.input_shapes(SIZES)["input_ids"] == inputs_of_form["input_ids"].shape
