"""Paired comparison of configurations with the baseline."""

import math

import pytest

from lopa.bench.quality.outcome import DecodeOutcome
from lopa.bench.quality.paired_comparison import Comparison, comparison_with_nearest, sign_test


def outcomes(verdicts: str, tokens: int) -> list[DecodeOutcome]:
    """Return outcomes of one step each: R right, W wrong, - not scored."""
    rights = {"R": True, "W": False, "-": None}
    return [
        DecodeOutcome(rights[each], steps=1, tokens=tokens, generated_positions=32, seconds=1.0) for each in verdicts
    ]


def test_the_sign_test() -> None:
    assert sign_test(5, 5) == 1.0
    assert sign_test(0, 0) == 1.0
    assert sign_test(8, 1) == pytest.approx(2 * (1 + 9) / 2**9)
    assert sign_test(1, 8) == sign_test(8, 1)


def test_sign_test_of_thousands_of_prompts() -> None:
    """Use prompts with more outcomes than a float can represent. The result is close to a normal distribution."""
    normal = math.erfc(100 / math.sqrt(2 * 4000))
    assert sign_test(2050, 1950) == pytest.approx(normal, rel=0.05)


def test_pairs_are_counted_prompt_by_prompt() -> None:
    found = comparison_with_nearest(outcomes("RRRRWWWW", 4), {"d2f 0.9": outcomes("RWWWRWWW", 4)})
    assert found == Comparison("d2f 0.9", gained=3, lost=1, p=pytest.approx(10 / 16))


def test_the_control_is_the_nearest_in_speed() -> None:
    controls = {"slow": outcomes("R", 2), "like": outcomes("W", 6), "fast": outcomes("R", 9)}
    for tokens, name in ((1, "slow"), (3, "slow"), (5, "like"), (7, "like"), (8, "fast"), (20, "fast")):
        found = comparison_with_nearest(outcomes("R", tokens), controls)
        assert found is not None
        assert found.control == name
    assert comparison_with_nearest(outcomes("R", 0), controls) is not None, "nothing was generated"


def test_no_comparison_without_a_control_or_a_score() -> None:
    assert comparison_with_nearest(outcomes("RW", 4), {}) is None
    assert comparison_with_nearest(outcomes("--", 4), {"d2f": outcomes("--", 4)}) is None
