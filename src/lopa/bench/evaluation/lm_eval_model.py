"""A bundle as lm-eval's model `lopa`: its requests go through one engine, many at once. Importing it registers it.

Needs lm-eval (the extra `eval`). Only tasks that generate: a masked model has no p(token | the text left of it).
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from lopa.bench.evaluation.asked_options import options_from_asked
from lopa.runtime.checked_values import shown
from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import MAX_NUM_SEQS, MAX_WAITING, Engine
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.text.prompt_ids import Prompt, PromptRequest

MODEL = "lopa"
MAX_NEW_TOKENS = 256
"""Where neither the task nor the model's arguments say a length: what lm-eval's own backends take."""


class ChatText(str):
    """A chat as lm-eval carries it from `apply_chat_template` to `generate_until`: its messages as JSON.

    Ids are made of the messages, not of a rendered text, so that a message forges no special token.
    """

    __slots__ = ()


@register_model(MODEL)
class LopaLM(LM):  # type: ignore[misc]
    """A bundle, decoded in this process. Answers are those of the decoder, whatever runs beside them."""

    def __init__(
        self,
        bundle: str | None = None,
        *,
        devices: str = "cpu",
        threads: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,  # noqa: ARG002 (lm-eval always says it)
        device: str | None = None,  # noqa: ARG002 (the same: "cuda:0" where the user said nothing)
        **options: Any,
    ) -> None:
        """`devices` are joined by "+"; `batch_size` requests run at once ("auto": the engine's default).

        `options` are GenerationConfig's by name, for what a task does not say itself; `max_new_tokens` among them is
        for tasks without a length. Raises as Decoder.open and GenerationConfig do, and BadInputError without a bundle.
        """
        super().__init__()
        if bundle is None:
            raise BadInputError(
                "no bundle to evaluate", expected="a bundle's folder", remedy="--model_args bundle=BUNDLE,branches=4"
            )
        self._slots = _slots(batch_size)
        self._decoder = Decoder.open(str(bundle), tuple(devices.split("+")), threads=threads)
        self._tokens = options.pop("max_new_tokens", MAX_NEW_TOKENS)
        self._options = options
        self._decoder.config(max_new_tokens=self._tokens, **options)  # refused before any task is read
        self._steps = self._answered = self._written = 0

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The texts of the answers, in order. Nothing is decoded when one request cannot be used."""
        asked = [self._request(number, *request.args) for number, request in enumerate(requests)]
        texts = []
        with (
            Engine(self._decoder, max_num_seqs=self._slots, queue_limit=MAX_WAITING) as engine,
            tqdm(total=len(asked), disable=disable_tqdm, desc="Running generate_until requests") as bar,
        ):
            for request, handle in zip(requests, engine.submit_many(asked), strict=True):
                result = handle.result()
                self._count(result)
                texts.append(result.text)
                self.cache_hook.add_partial("generate_until", request.args, result.text)
                bar.update()
        return texts

    def loglikelihood(self, requests: Sequence[Instance]) -> NoReturn:  # noqa: ARG002
        """Refused."""
        raise BadInputError(
            "a task that asks for the probability of a given text (loglikelihood)",
            expected="tasks of output_type generate_until: a masked model sees what stands on both sides of a token, "
            "so it has no probability of a text read from left to right",
            remedy="take the task's generative variant, e.g. gsm8k, humaneval, ifeval, mmlu_generative",
        )

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> NoReturn:
        """Refused."""
        self.loglikelihood(requests)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The chat, to be made into ids by the bundle's template.

        Without `add_generation_prompt` the last message is the beginning of the answer. Raises BadInputError for a
        bundle without a template, and for messages that it does not take.
        """
        text = ChatText(json.dumps({"messages": chat_history, "begun": not add_generation_prompt}))
        self._prompt(text)
        return text

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The bundle's, for lm-eval's records. Raises BadInputError for the name of another one."""
        if isinstance(chat_template, str):
            raise BadInputError(
                f"chat template {shown(chat_template)}",
                expected="--apply_chat_template alone: a bundle has one template at most",
                remedy="leave the name out",
            )
        return self._decoder.tokenizer.chat_template() if chat_template else ""

    @cached_property
    def tokenizer_name(self) -> str:
        """Tells bundles apart in lm-eval's cache of requests."""
        return f"lopa-{self._decoder.bundle.manifest.weights_digest}"

    def get_model_info(self) -> dict[str, Any]:
        """For lm-eval's results: what was run, and how many forwards the answers took."""
        return {
            "lopa_bundle": self._decoder.bundle.path.resolve().name,
            "lopa_weights_digest": self._decoder.bundle.manifest.weights_digest,
            "lopa_device": self._decoder.session.device,
            "lopa_answers": self._answered,
            "lopa_steps": self._steps,
            "lopa_tokens": self._written,
            "lopa_tokens_per_forward": self._written / self._steps if self._steps else None,
        }

    def _request(self, number: int, context: str, asked: dict[str, Any]) -> PromptRequest:
        """Request `number` of a call; where tokens are drawn each has a seed of its own."""
        options = options_from_asked(asked, default_tokens=self._tokens)
        config = self._decoder.config(**self._options | options)
        drawn = self._decoder.plan(config).temperature > 0
        return PromptRequest(self._prompt(context), _with_own_seed(config, number) if drawn else config)

    def _prompt(self, context: str) -> Prompt:
        if not isinstance(context, ChatText):
            return context
        chat = json.loads(context)
        messages, begun = chat["messages"], ""
        if chat["begun"]:
            *messages, last = messages
            begun = last["content"]
        return [
            *self._decoder.prompt_from_messages(messages),
            *(self._decoder.tokenizer.encode(begun, add_bos=False) if begun else ()),
        ]

    def _count(self, result: GenerationResult) -> None:
        self._answered += 1
        self._steps += result.steps
        self._written += result.tokens


def _with_own_seed(config: GenerationConfig, number: int) -> GenerationConfig:
    """A draw depends on seed, step and position alone: with one seed all samples of a question were the same."""
    assert config.seed is not None
    return replace(config, seed=config.seed + number)


def _slots(batch_size: int | str | None) -> int:
    if batch_size is None or batch_size == "auto":
        return MAX_NUM_SEQS
    if not str(batch_size).isdecimal() or not int(batch_size):
        raise BadInputError(
            f"batch_size {shown(batch_size)}", expected="a number from 1, or auto", remedy="e.g. --batch_size 8"
        )
    return int(batch_size)
