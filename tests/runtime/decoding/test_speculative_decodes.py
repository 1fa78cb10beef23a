"""Speculative decodes give the same tokens in no more forwards, and break if one of their conditions is removed."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.runtime.requests.batch_mates import decoded
from tools.random_configs import random_config, random_prompt

from lopa.runtime import BadInputError, Decoder, GenerationConfig
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.strategy import STRATEGIES
from lopa.tiny import EVAL

MAX_TOKENS = 96
"""Maximum tokens of a random decode, enough for a few blocks of any size."""
LOGPROB_ERROR = 1e-4
"""Tolerance of log-probabilities. Forwards with different numbers of branches may round differently."""


@dataclass(frozen=True)
class Pair:
    """One prompt decoded plainly and with exact speculative decoding."""

    alone: GenerationResult
    speculative: GenerationResult

    @property
    def differs(self) -> bool:
        """True if the answers differ in tokens, text, stop reason or log-probabilities."""
        one, other = self.alone, self.speculative
        return (
            (one.token_ids, one.text, one.stop_reason) != (other.token_ids, other.text, other.stop_reason)
            or (one.logprobs is None) != (other.logprobs is None)
            or not np.allclose(one.logprobs or (), other.logprobs or (), rtol=0, atol=LOGPROB_ERROR)
        )


def pair_of(decoder: Decoder, prompt: str | Sequence[int], speculative: GenerationConfig) -> Pair:
    """Decode `prompt` with `speculative`, and with the strategy alone."""
    alone = replace(speculative, speculative=False, branches=1)
    return Pair(decoder.generate(prompt, alone), decoder.generate(prompt, speculative))


def random_speculative_config(rng: np.random.Generator, decoder: Decoder) -> GenerationConfig:
    """Return random options that support exact speculative decoding, with 2 to 8 branches."""
    while True:
        drawn = random_config(rng, decoder)
        config = replace(
            drawn,
            speculative=True,
            strategy=drawn.strategy if STRATEGIES[str(drawn.strategy)].from_one_branch else "d2f",
            branches=int(rng.integers(2, 9)),
            max_new_tokens=int(rng.integers(1, MAX_TOKENS + 1)),
            logprobs=bool(rng.random() < 0.3),
            reference=False,
        )
        try:
            decoder.params(config)
        except BadInputError:
            continue  # e.g. an unsupported strategy
        return config


def prompt_number(number: int) -> str:
    return str(json.loads(EVAL.read_text(encoding="utf-8").splitlines()[number])["prompt"])


@pytest.mark.parametrize(
    ("strategy", "forwards"),
    [
        ("vanilla", 0.7),
        ("sequential", 0.5),
        ("threshold", 0.9),
        ("d2f", 1.0),
        ("eb", 1.0),
        ("top_n", 0.8),
        ("dream", 0.7),  # these three have memory
        ("klass", 0.8),
        ("credit", 1.0),
    ],
)
def test_fewer_forwards_for_the_same_tokens(decoder: Decoder, strategy: str, forwards: float) -> None:
    config = decoder.config(strategy=strategy, speculative=True, branches=4, max_new_tokens=64)
    pair = pair_of(decoder, prompt_number(2), config)
    assert not pair.differs
    assert pair.speculative.generated_positions == pair.alone.generated_positions
    assert pair.speculative.steps <= forwards * pair.alone.steps
    assert (pair.speculative.branches, pair.alone.branches) == (4, 1)


@pytest.mark.parametrize(
    ("first", "count"),
    [(9000, 12), *(pytest.param(first, 25, marks=pytest.mark.slow) for first in range(0, 200, 25))],
)
def test_random_options(
    decoder: Decoder, first: int, count: int, record_property: Callable[[str, object], None]
) -> None:
    forwards = Counter[str]()
    for seed in range(first, first + count):
        rng = np.random.default_rng(seed)
        config = random_speculative_config(rng, decoder)
        pair = pair_of(decoder, random_prompt(rng, decoder), config)
        assert not pair.differs, (seed, config)
        assert pair.speculative.steps <= pair.alone.steps, (seed, config)
        forwards["alone"] += pair.alone.steps
        forwards["speculative"] += pair.speculative.steps
    assert forwards["alone"] - forwards["speculative"] > count
    record_property("forwards", dict(forwards))


def test_rounds_that_commit_rows_have_only_the_anchor(decoder: Decoder) -> None:
    for attention in ("full", "block_causal"):
        config = decoder.config(
            strategy="d2f", attention=attention, block_size=8, speculative=True, branches=4, max_new_tokens=64
        )
        _, steps = decoded(decoder, prompt_number(1), config)
        committing = [len(step.branches) for step in steps if step.rows.commit]
        assert len(committing) > 3
        assert set(committing) == {1}
        assert max(len(step.branches) for step in steps) == 4


def test_a_round_reports_all_tokens_of_its_steps(decoder: Decoder) -> None:
    config = decoder.config(
        strategy="vanilla", speculative=True, branches=4, logprobs=True, stop_at_eos=False, max_new_tokens=32
    )
    result, steps = decoded(decoder, prompt_number(1), config)
    found = {}
    for step in steps:
        for position, token, logprob in zip(
            step.unmasked.positions, step.unmasked.tokens, step.unmasked.logprobs, strict=True
        ):  # type: ignore[arg-type]
            found[int(position) - len(result.prompt_ids)] = int(token), float(logprob)
    assert [found[place] for place in range(32)] == list(zip(result.token_ids, result.logprobs, strict=True))
    assert max(len(step.unmasked.positions) for step in steps) > 1
    assert {step.branches[step.winner].lookahead for step in steps} == {None}
    assert any(step.winner != len(step.branches) - 1 for step in steps)
