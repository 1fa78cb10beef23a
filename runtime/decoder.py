"""Text in, text out: a bundle opened on a device, and the requests decoded on it."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from lopa.runtime.branch_budget import BranchBudget
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Int64
from lopa.runtime.costs import CostTable, costs_from_bundle
from lopa.runtime.decoding import Decoding, Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.runtime.session import Session, open_session
from lopa.runtime.text_stream import TextStream
from lopa.runtime.timeline import Timeline
from lopa.runtime.tokenizer import Tokenizer

Prompt = str | Sequence[int]
UNDECIDED = "░"


class Decoder:
    """Decodes prompts with one bundle on one device; one request at a time, one caller at a time."""

    def __init__(self, bundle: Bundle, session: Session, tokenizer: Tokenizer, *, threads: int | None = None) -> None:
        self.bundle = bundle
        self.session = session
        self.tokenizer = tokenizer
        self._threads = threads
        self._requests = 0

    @classmethod
    def open(
        cls,
        path: Path | str,
        devices: Sequence[str] = ("cpu",),
        *,
        threads: int | None = None,
        timeline: Timeline | None = None,
    ) -> Self:
        """Open the bundle at `path` on one device ("cpu", "cuda:0", "numpy", or a pipeline, "cuda:0+cuda:1").

        `threads` None lets the engine choose; those of each stage in a pipeline, whose stages tell `timeline` when they
        work.

        Raises BadInputError for a bundle that cannot be used, MissingBackendError for a device that is not there.
        """
        if isinstance(devices, str) or len(devices) != 1:
            raise BadInputError(f"devices {devices!r}", expected="a list of one device", remedy='e.g. devices=["cpu"]')
        bundle = Bundle.open(path)
        tokenizer = Tokenizer.open(bundle)
        session = open_session(bundle, devices[0], threads=threads, timeline=timeline)
        return cls(bundle, session, tokenizer, threads=threads)

    def config(self, **overrides: Any) -> GenerationConfig:
        """A config that starts from what the bundle's checkpoint was trained for."""
        defaults = self.bundle.manifest.decoding
        return GenerationConfig.from_mapping(
            {
                "block_size": defaults.block_size,
                "block_add_threshold": defaults.block_add_threshold,
                "decoded_token_threshold": defaults.decoded_token_threshold,
                "skip_threshold": defaults.skip_threshold,
                **overrides,
            }
        )

    def generate(self, prompts: Iterable[Prompt], config: GenerationConfig | None = None) -> Iterator[GenerationResult]:
        """Decode prompts one after another; results come in the same order, each as soon as it is done."""
        for prompt in prompts:
            *_, last = self.stream(prompt, config)
            assert isinstance(last, DoneEvent)
            yield last.result

    def stream(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        *,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
    ) -> Iterator[Event]:
        """Decode one prompt: text events as text is committed, drafts if wanted, the result last.

        `prompt` is text, to which a beginning-of-text is added as the bundle says, or ids, taken as they are. Closing
        the iterator cancels the request. Raises BadInputError for an empty prompt, one that does not fit, and
        branches="auto" without a cost table of this device in the bundle.
        """
        config = self.config() if config is None else config
        prompt_ids = self._ids_from_prompt(prompt, config)
        budget = BranchBudget(self._cost_table) if config.branches == "auto" else None
        return self._events(prompt_ids, config, budget, drafts, on_step)

    def prompt_from_messages(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a chat ({"role", "content"} each) by the bundle's chat template, ready for `stream`."""
        return self.tokenizer.chat(messages)

    def close(self) -> None:
        """Free the engine."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _cost_table(self) -> CostTable:
        """Of this bundle on this device; read when first needed."""
        return costs_from_bundle(self.bundle, self.session.device, self._threads)

    def _events(
        self,
        prompt_ids: Int64,
        config: GenerationConfig,
        budget: BranchBudget | None,
        drafts: bool,
        on_step: Callable[[Step], None] | None,
    ) -> Iterator[Event]:
        began = time.perf_counter()
        self._requests += 1
        request = self._requests
        decoding = Decoding(self.session, request, prompt_ids, config, self.bundle.manifest, budget)
        stream = TextStream(self.tokenizer, config.stop)
        text, pushed = "", 0
        try:
            while decoding.stop_reason is None:
                step = decoding.step()
                if on_step is not None:
                    on_step(step)
                committed = decoding.committed()
                new = stream.push(committed[pushed:].tolist())
                pushed = len(committed)
                if new:
                    text += new
                    yield TextEvent(new)
                if drafts:
                    yield DraftEvent(step.number, self._draft(decoding))
                if stream.stopped is not None:
                    break
                if config.time_limit is not None and time.perf_counter() - began >= config.time_limit:
                    decoding.stop(decoding.stop_reason or "time_limit")
            rest = stream.finish()
            if rest:
                text += rest
                yield TextEvent(rest)
            if stream.stopped is not None:
                decoding.stop("stop_string")
        finally:
            self.session.release(request)
        ended_by_text = stream.token_count if stream.stopped is not None else None
        yield DoneEvent(_result(decoding, prompt_ids, config, text, ended_by_text, time.perf_counter() - began))

    def _draft(self, decoding: Decoding) -> str:
        """The answer so far; a run of undecided positions becomes as many light blocks."""
        ids = decoding.generated()
        decided = decoding.anchor.decided[decoding.prompt_length :]
        edges = np.flatnonzero(np.diff(decided.astype(np.int8))) + 1
        runs = zip(np.split(ids, edges), np.split(decided, edges), strict=True)
        return "".join(
            self.tokenizer.decode(run.tolist()) if is_decided.all() else UNDECIDED * len(run)
            for run, is_decided in runs
        )

    def _ids_from_prompt(self, prompt: Prompt, config: GenerationConfig) -> Int64:
        manifest = self.bundle.manifest
        ids = self.tokenizer.encode(prompt, add_bos=manifest.decoding.add_bos) if isinstance(prompt, str) else prompt
        if not len(prompt) or not len(ids):
            raise BadInputError(
                "an empty prompt", expected="at least one character or one id", remedy="give a text to continue"
            )
        array = np.asarray(ids)
        vocabulary = manifest.dimensions.vocab_size
        if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= vocabulary:
            raise BadInputError(
                f"prompt ids {str(list(ids))[:80]}",
                expected=f"a list of whole numbers from 0 to {vocabulary - 1}",
                remedy="encode the text with the bundle's own tokenizer",
            )
        most, generated = manifest.dimensions.max_positions, sum(config.block_sizes)
        if len(array) + generated > most:
            raise BadInputError(
                f"a prompt of {len(array)} tokens with max_new_tokens {generated}",
                expected=f"at most {most} positions in all, which is what the model was trained for",
                remedy="shorten the prompt or lower max_new_tokens",
            )
        return array.astype(np.int64)


def _result(
    decoding: Decoding,
    prompt_ids: Int64,
    config: GenerationConfig,
    text: str,
    ended_by_text: int | None,
    seconds: float,
) -> GenerationResult:
    """The result; `ended_by_text` is the number of ids up to the end of a stop string, if one ended the answer."""
    assert decoding.stop_reason is not None
    answer = decoding.committed()[:ended_by_text]
    every = decoding.generated()
    return GenerationResult(
        prompt_ids=tuple(prompt_ids.tolist()),
        token_ids=tuple((every if config.published else answer).tolist()),
        text=text,
        steps=decoding.steps,
        tokens=len(answer),
        window_tokens=decoding.window_tokens,
        tokens_per_forward=len(answer) / decoding.steps if decoding.steps else 0.0,
        stop_reason=decoding.stop_reason,
        seconds=seconds,
    )
