"""The strategies of examples/ and decodes with them, for tests of third-party strategies."""

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime import Decoder
from lopa.runtime.decoding.branch_budget import BranchBudget
from lopa.runtime.decoding.extension import Extension
from lopa.runtime.decoding.step import Step
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import Strategy

EXAMPLES = Path(__file__).parents[3] / "examples"


def strategy_of_example(name: str) -> Strategy:
    """Return the record in the file of examples/NAME_strategy."""
    file = EXAMPLES / f"{name}_strategy" / f"{name}_strategy.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, name.upper())
    assert isinstance(found, Strategy)
    return found


def params_with(strategy: Strategy, own: dict[str, Any], **options: Any) -> DecodingParams:
    """Return a plan for `strategy`, with the options of pipelined strategies that look ahead."""
    params = params_of(strategy="lopa", **options)
    values = {option.name: option.value(own.get(option.name), params.max_new_tokens) for option in strategy.options}
    return dataclasses.replace(params, strategy=strategy.name, own=values)


def steps_of(
    decoder: Decoder, prompt: tuple[int, ...], params: DecodingParams, budget: BranchBudget | None = None
) -> Iterator[Step]:
    """Yield the steps of a decode one by one."""
    extensions = () if budget is None else (Extension(candidates=budget.candidates),)
    decoding = LoneDecode(decoder.session, np.array(prompt), params, decoder.bundle.manifest, *extensions)
    try:
        while decoding.stop_reason is None:
            yield decoding.step()
    finally:
        decoding.release()
