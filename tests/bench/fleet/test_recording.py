"""Recorded decodes of the tiny model equal the decodes themselves."""

from pathlib import Path

import pytest

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.fleet.decode_recording import record_decodes, table_of_decodes
from lopa.bench.fleet.decodes import decodes_from_file, text_of_decodes
from lopa.runtime.contract import tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.tiny import EVAL


def test_every_step_is_recorded(tiny_bundle: Path, tmp_path: Path) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        found = record_decodes(decoder, (1, 4), limit=1)
        path = tmp_path / "decodes.json"
        path.write_bytes(text_of_decodes(found))
        assert decodes_from_file(path) == found
        prompts = [item.prompt for item in eval_set_from_jsonl(EVAL, limit=1)]
        assert len(found.prompts) == len(prompts) == 2
        for number, prompt in enumerate(prompts):
            for branches in (1, 4):
                steps: list[Step] = []
                result = list(decoder.stream(prompt, decoder.config(branches=branches), on_step=steps.append))[
                    -1
                ].result
                decode = found.of(number, branches)
                assert (decode.tokens, decode.prompt, len(decode.steps)) == (
                    result.tokens,
                    len(result.prompt_ids),
                    result.steps,
                )
                assert [step.branches for step in decode.steps] == [len(step.branches) for step in steps]
                shapes = [
                    Sizes(1, len(step.rows.lengths), max(step.rows.lengths), tiles(step.rows.prefix), 0)
                    for step in steps
                ]
                assert [(s.branches, s.window, s.prefix) for s in decode.shapes] == [
                    (s.branches, s.window, s.prefix) for s in shapes
                ]
                assert decode.prompt_rows == steps[0].rows.commit
                known = decode.shape_of_known_prompt
                assert known.window == decode.shapes[0].window - steps[0].rows.commit
    assert (
        found.tokens_a_step(4)
        > found.tokens_a_step(1)
        == pytest.approx(sum(found.of(n, 1).tokens for n in (0, 1)) / sum(len(found.of(n, 1).steps) for n in (0, 1)))
    )
    assert [row[0] for row in table_of_decodes(found).rows] == ["1", "4"]
