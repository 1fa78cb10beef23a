"""Reuse of prompt rows: conditions, eviction, and unchanged results with less work."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.plans import plan_of
from tools.random_configs import random_prompt

from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.prompt_store import PromptStore, StoredPrompt

CAUSAL = plan_of(window="block_causal")


def stored(rng: np.random.Generator, rows: int) -> StoredPrompt:
    last = RowStatistics(rng.integers(0, 9, 8), rng.random(8, np.float32), np.float32(1))
    return StoredPrompt(CacheRows((rng.random((2, rows, 4), np.float32),)), last)


def test_the_least_recently_used_is_dropped_first() -> None:
    rng = np.random.default_rng(0)
    store = PromptStore(max_rows=30)
    prompts = [rng.integers(0, 100, 10) for _ in range(4)]
    for prompt in prompts[:3]:
        assert store.can_store(prompt, CAUSAL)
        store.add(prompt, CAUSAL, stored(rng, 10))
    assert store.find(prompts[0], CAUSAL) is not None
    store.add(prompts[3], CAUSAL, stored(rng, 10))
    assert store.rows == 30
    assert store.find(prompts[1], CAUSAL) is None
    assert all(store.find(prompts[i], CAUSAL) is not None for i in (0, 2, 3))
    assert store.rows_saved == 40


def test_rows_are_found_only_for_the_same_prompt_and_temperature() -> None:
    rng = np.random.default_rng(1)
    store = PromptStore(max_rows=100)
    prompt = rng.integers(0, 100, 10)
    store.add(prompt, CAUSAL, stored(rng, 10))
    assert not store.can_store(prompt, CAUSAL)
    for plan in (
        plan_of(window="block_causal", temperature=1.0, seed=9),
        plan_of(window="block_causal", strategy="vanilla", block_size=3),
    ):
        assert store.find(prompt, plan) is not None
    for plan in (
        plan_of(window="full"),
        plan_of(window="block_causal", reference=True),
        plan_of(window="block_causal", temperature=0.5),
    ):
        assert store.find(prompt, plan) is None
    assert store.find(prompt[:-1], CAUSAL) is None
    assert store.find(np.append(prompt, 5), CAUSAL) is None
    assert not store.can_store(rng.integers(0, 100, 101), CAUSAL)
    assert not store.can_store(prompt, plan_of())
    assert not PromptStore(0).can_store(prompt, CAUSAL)


@pytest.mark.parametrize("config", [{"branches": 3}, {"strategy": "d2f", "temperature": 0.8}, {"block_size": 8}])
def test_a_stored_prompt_gives_the_same_answer_with_fewer_rows(tiny_bundle: Path, config: dict[str, object]) -> None:
    rng = np.random.default_rng(2)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        options = decoder.config(window="block_causal", max_new_tokens=40, **config)
        for _ in range(4):
            prompt = random_prompt(rng, decoder)
            alone_steps, steps = [], []
            list(decoder.stream(prompt, options, on_step=alone_steps.append))
            alone, first, again = _results(decoder, prompt, options, steps)
            assert dataclasses.replace(first, seconds=0) == alone
            assert dataclasses.replace(again, seconds=0) == alone
            mine = steps[len(steps) // 2 :]
            assert len(mine) == len(alone_steps)
            assert (mine[0].windows.prefix, mine[0].windows.commit) == (len(prompt), 0)
            saved = alone_steps[0].windows.input_ids.size - mine[0].windows.input_ids.size
            assert saved == len(prompt)
            assert [step.unmasked.tokens.tolist() for step in mine] == [s.unmasked.tokens.tolist() for s in alone_steps]


def _results(decoder: Decoder, prompt: object, config: GenerationConfig, steps: list[Step]) -> list[object]:
    """Return the results of the request alone, in a new pool, and in the same pool again."""
    *_, last = decoder.stream(prompt, config)  # type: ignore[arg-type]
    results: list[object] = [dataclasses.replace(last.result, seconds=0)]  # type: ignore[union-attr]
    pool = decoder._pool()
    for _ in range(2):
        job = decoder._job(prompt, config, on_step=steps.append)  # type: ignore[arg-type]
        pool.add(job)
        while len(pool):
            pool.step()
        results.append(job.handle.result(0))
    return results


def test_a_full_window_computes_its_prompt_every_time(tiny_bundle: Path) -> None:
    """The prompt's rows attend to masked positions behind it, whose number depends on the block size."""
    rng = np.random.default_rng(3)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        steps: list[Step] = []
        _results(decoder, random_prompt(rng, decoder), decoder.config(max_new_tokens=8), steps)
        assert [step.windows.prefix for step in steps if step.number == 1] == [0, 0]


class CountingRows:
    """A session that counts the window rows it computes."""

    def __init__(self, session: object) -> None:
        self._session = session
        self.rows = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def forward(self, batch: WindowBatch) -> Statistics:
        self.rows += batch.input_ids.size
        return self._session.forward(batch)  # type: ignore[attr-defined, no-any-return]


def test_reused_rows_are_not_computed(tiny_bundle: Path) -> None:
    rng = np.random.default_rng(4)
    with Decoder.open(tiny_bundle, threads=1) as inner:
        prompt = random_prompt(rng, inner)
        counts = []
        for kept in (0, 4096):
            session = CountingRows(inner.session)
            decoder = Decoder(inner.bundle, session, inner.tokenizer, threads=1)  # type: ignore[arg-type]
            pool = decoder._pool(kept)
            for _ in range(3):
                pool.add(decoder._job(prompt, decoder.config(window="block_causal", max_new_tokens=16)))
                while len(pool):
                    pool.step()
            counts.append(session.rows)
        assert counts[0] - counts[1] == 2 * len(prompt)
