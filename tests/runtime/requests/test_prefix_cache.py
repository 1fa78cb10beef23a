"""The prefix cache of a pool: unchanged results with less work, whatever is shared, cancelled or evicted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.requests.batch_mates import CountingSession, alone, result_of, with_stored_prompt
from tools.random_configs import random_prompt

from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.request import MAX_CACHE_SALT, Request

BLOCKS: dict[str, Any] = {"attention": "block_causal", "alignment": "absolute", "block_size": 8, "branches": 2}
"""Options with which any model counts blocks from position 0."""


SUB_BLOCKS = {**BLOCKS, "strategy": "threshold", "branches": None, "sub_block": 4, "cache": "sub_block"}
"""Options with which rounds also cache rows that are not final."""


@pytest.mark.parametrize("options", [BLOCKS, SUB_BLOCKS])
def test_the_next_turn_computes_only_new_rows(tiny_bundle: Path, options: dict[str, Any]) -> None:
    """The answer's finished blocks are found too. The tiny model predicts the next position."""
    rng = np.random.default_rng(5)
    with Decoder.open(tiny_bundle, threads=1) as inner:
        counts = []
        for kept in (0, 4096):
            session: Any = CountingSession(inner.session)
            decoder = Decoder(inner.bundle, session, inner.tokenizer, threads=1)
            config = decoder.config(**options, max_new_tokens=30, stop_at_eos=False)
            ids, seen = list(random_prompt(rng, decoder)) if not counts else counts[0][0], list[int]()
            first = list(ids)
            with Engine(decoder, prefix_cache_tokens=kept) as engine:
                for _ in range(4):
                    session.batches.clear()
                    found = result_of(engine.submit(ids, config))
                    seen.append(sum(each.input_ids.size for each in session.batches))
                    assert found.cached_tokens % 8 == 0
                    if kept and len(seen) > 1:  # more than the prompt before, and whole blocks of its answer
                        assert len(ids) - 34 < found.cached_tokens <= len(ids) - 4
                    else:
                        assert not found.cached_tokens
                    ids = [*ids, *found.token_ids, 5, 6, 7, 8]
            counts.append((first, ids, seen, engine.status.prefix_hit_tokens))
        (_, plain, without, _), (_, cached, with_cache, saved) = counts
        assert plain == cached
        assert saved > 60
        # A round that only commits the prompt is skipped if all of that is stored. It also has an incomplete block.
        skipped = sum(without) - sum(with_cache) - saved
        assert skipped in (range(4 * 8) if options is SUB_BLOCKS else [0])


def test_equal_ids_under_other_temperatures_and_options_are_not_mixed(tiny_bundle: Path) -> None:
    rng = np.random.default_rng(6)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        prompt = random_prompt(rng, decoder)
        options: list[dict[str, Any]] = [
            {},
            {"temperature": 0.4, "seed": 3},
            {"temperature": 1.7, "seed": 3},
            {"block_size": 16},
            {"alignment": "prompt"},
            {"alignment": "prompt", "temperature": 0.4},
            {"attention": "full"},
            {"strategy": "threshold", "branches": None},
            SUB_BLOCKS,
        ]
        base = {**BLOCKS, "temperature": 1.0, "seed": 0, "max_new_tokens": 20}
        configs = [decoder.config(**{**base, **each}) for each in options]
        expected = [alone(decoder, prompt, each) for each in configs]
        for order in (configs, configs[::-1]):
            with Engine(decoder, max_num_seqs=3) as engine:
                for _ in range(3):
                    handles = [engine.submit(prompt, each) for each in order]
                    found = {config: result_of(handle) for config, handle in zip(order, handles, strict=True)}
                    for config, alone_result in zip(configs, expected, strict=True):
                        assert found[config] == with_stored_prompt(alone_result, found[config])
                assert engine.status.prefix_hits > 2 * (len(configs) - 2)


@pytest.mark.parametrize("salt", ["", "x" * (MAX_CACHE_SALT + 1), 5, b"x"])
def test_invalid_salts(tiny_bundle: Path, salt: Any) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder, Engine(decoder) as engine:
        with pytest.raises(BadInputError, match="cache_salt"):
            engine.submit_many([Request((5, 6), decoder.config(), salt)])
        with pytest.raises(BadInputError, match="cache_salt"):
            decoder.generate(Request((5, 6), decoder.config(), salt))
