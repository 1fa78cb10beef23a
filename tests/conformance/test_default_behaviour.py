"""The default mode gives the published answer up to its first end of text, in no more steps.

This holds while every row stays in the window. With drop_after_eos the model's input differs, and answers may differ.
"""

import dataclasses
from pathlib import Path

import pytest
from tests.conformance.recorded import TRACES, prompt_of, read_traces
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import open_session

# Options that the default and reference modes share. x_..new120 is missing because its last block is shorter,
# and the published loop drops such a block.
FILES = [
    "d2f_bs16_block",
    "d2f_bs32_full_margin",
    "lopa_bf8_bs32_full",
    "x_long_lopa_bf4_bs32_full",
]


@pytest.mark.parametrize("name", FILES)
def test_same_answer_in_fewer_steps(name: str, tiny_bundle: Path) -> None:
    published, traces = read_traces(TRACES / f"{name}.jsonl.gz")
    config = dataclasses.replace(published, reference=False, drop_after_eos=False)
    bundle = Bundle.open(tiny_bundle)
    session = open_session(bundle, "cpu", threads=1)
    eos = bundle.manifest.special_tokens.eos if config.stop_at_eos else None
    ours = theirs = 0
    for trace in traces[:12]:
        if trace["min_margins"]["winner"] is not None and trace["min_margins"]["winner"] < 1e-4:
            continue
        decoding = LoneDecode(session, prompt_of(trace), params_of(config), bundle.manifest)
        decoding.run()
        ids = trace["generated_ids"]
        answer = ids[: ids.index(eos) + 1] if eos in ids else ids
        assert decoding.answer.committed.tolist() == answer
        assert decoding.steps <= trace["forward_rounds"]
        assert decoding.stop_reason == ("eos" if eos in ids else "length")
        ours += decoding.steps
        theirs += trace["forward_rounds"]
    session.close()
    if config.strategy == "lopa":
        assert ours < theirs, "no step was saved in the whole file"
