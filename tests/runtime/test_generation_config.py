from typing import Any

import pytest

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"strategy": "beam"}, "strategy 'beam'"),
        ({"branches": 0}, "branches 0"),
        ({"branches": 2.0}, "branches 2.0"),
        ({"strategy": "d2f", "branches": 3}, "branches 3 with strategy 'd2f'"),
        ({"block_size": 0}, "block_size 0"),
        ({"block_add_threshold": 1.5}, "block_add_threshold 1.5"),
        ({"decoded_token_threshold": -0.1}, "decoded_token_threshold -0.1"),
        ({"skip_threshold": float("nan")}, "skip_threshold nan"),
        ({"skip_threshold": "0.9"}, "skip_threshold '0.9'"),
        ({"confidence": "entropy"}, "confidence 'entropy'"),
        ({"window": "causal"}, "window 'causal'"),
        ({"max_new_tokens": 0}, "max_new_tokens 0"),
        ({"max_new_tokens": True}, "max_new_tokens True"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"top_k": 9}, "top_k 9"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"seed": -1}, "seed -1"),
        ({"stop": "end"}, "stop 'end'"),
        ({"stop": ("",)}, "stop ('',)"),
        ({"time_limit": 0}, "time_limit 0"),
        ({"branche": 4}, "unknown option 'branche'"),
    ],
)
def test_bad_values_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInputError) as caught:
        GenerationConfig.from_mapping(options)
    assert caught.value.received == named
    assert caught.value.exit_code == 2
    assert caught.value.expected
    assert caught.value.remedy


def test_lookaheads_are_the_branches_beside_the_anchor() -> None:
    assert GenerationConfig().lookaheads == 3
    assert GenerationConfig(branches=1).lookaheads == 0
    assert GenerationConfig(branches=8).lookaheads == 7
    for strategy in ("d2f", "threshold", "vanilla"):
        assert GenerationConfig(strategy=strategy).lookaheads == 0


def lengths(config: GenerationConfig) -> list[int]:
    found = [config.block_length(number) for number in range(config.block_count)]
    assert sum(found) == config.positions
    return found


def test_only_the_published_loop_drops_the_last_short_block() -> None:
    assert lengths(GenerationConfig(max_new_tokens=40)) == [32, 8]
    assert lengths(GenerationConfig.reference(max_new_tokens=40)) == [32]
    assert lengths(GenerationConfig(max_new_tokens=64)) == [32, 32]
    assert lengths(GenerationConfig.reference(max_new_tokens=31)) == []


def test_block_by_block_strategies_open_a_block_when_the_last_is_done() -> None:
    assert GenerationConfig(strategy="threshold").add_threshold == 1.0
    assert GenerationConfig(strategy="vanilla").add_threshold == 1.0
    assert GenerationConfig(strategy="d2f", block_add_threshold=0.3).add_threshold == 0.3
    assert GenerationConfig(strategy="vanilla").fill_threshold > 1
