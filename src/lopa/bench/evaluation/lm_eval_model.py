"""A bundle as lm-eval model `lopa`.

One engine decodes the model's requests in batches. Importing this module registers the model. It needs lm-eval (extra
`eval`). It supports only generative tasks, since a masked model has no p(token | text to its left).
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

from lopa.bench.evaluation.generation_kwargs import options_from_kwargs
from lopa.runtime.chat.chat import Chat
from lopa.runtime.chat.prepared_chat import ids_from_chat
from lopa.runtime.checked_values import shown
from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import MAX_NUM_SEQS, MAX_WAITING, Engine
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.request import Prompt, Request
from lopa.runtime.requests.result import GenerationResult

MODEL = "lopa"
MAX_NEW_TOKENS = 256
"""Default answer length if neither the task nor the model's arguments set one, as in lm-eval's own backends."""


class ChatText(str):
    """Chat messages as JSON, passed by lm-eval from `apply_chat_template` to `generate_until`.

    Token ids come from the messages and not from rendered text, so no message can forge a special token.
    """

    __slots__ = ()


@register_model(MODEL)
class LopaLM(LM):  # type: ignore[misc]
    """A bundle decoded in this process. Answers are the same as the decoder's and do not depend on the batch."""

    def __init__(
        self,
        bundle: str | None = None,
        *,
        devices: str = "cpu",
        threads: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,  # noqa: ARG002 (lm-eval always passes it)
        device: str | None = None,  # noqa: ARG002 (lm-eval passes "cuda:0" by default)
        **options: Any,
    ) -> None:
        """Open `bundle` on `devices` (names joined by "+") with `batch_size` concurrent requests ("auto": the engine's
        default).

        `options` are defaults for GenerationConfig by name. A task's own settings override them. `max_new_tokens` is
        for tasks without a length. Raises the errors of Decoder.open and GenerationConfig, and BadInputError without a
        bundle.
        """
        super().__init__()
        if bundle is None:
            raise BadInputError(
                "no bundle to evaluate",
                expected="a bundle's folder",
                remedy="add e.g. --model_args bundle=BUNDLE,branches=4",
            )
        self._slots = _slots(batch_size)
        self._decoder = Decoder.open(str(bundle), tuple(devices.split("+")), threads=threads)
        self._tokens = options.pop("max_new_tokens", MAX_NEW_TOKENS)
        self._options = options
        self._decoder.config(max_new_tokens=self._tokens, **options)  # fail before any task is read
        self._steps = self._answers = self._tokens_out = 0

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the texts of the answers, in order. Nothing is decoded if any request is invalid."""
        submitted = [self._request(number, *request.args) for number, request in enumerate(requests)]
        texts = []
        with (
            Engine(self._decoder, max_num_seqs=self._slots, queue_limit=MAX_WAITING) as engine,
            tqdm(total=len(submitted), disable=disable_tqdm, desc="Running generate_until requests") as bar,
        ):
            for request, handle in zip(requests, engine.submit_many(submitted), strict=True):
                result = handle.result()
                self._count(result)
                texts.append(result.text)
                self.cache_hook.add_partial("generate_until", request.args, result.text)
                bar.update()
        return texts

    def loglikelihood(self, requests: Sequence[Instance]) -> NoReturn:  # noqa: ARG002
        """Raise BadInputError: likelihoods are not supported."""
        raise BadInputError(
            "a task needs the probability of a given text (loglikelihood)",
            expected="tasks of output_type generate_until (a masked model has no left-to-right probability of a text)",
            remedy="use the generative variant of the task, e.g. gsm8k, humaneval, ifeval, mmlu_generative",
        )

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> NoReturn:
        """Raise BadInputError: likelihoods are not supported."""
        self.loglikelihood(requests)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the chat in a form that `generate_until` renders with the bundle's template.

        Without `add_generation_prompt` the last message is the beginning of the answer. Raises BadInputError for a
        bundle without a template, and for messages that the template rejects.
        """
        ids_from_chat(
            self._decoder.tokenizer, Chat(chat_history, continues=not add_generation_prompt), GenerationConfig()
        )
        return ChatText(json.dumps({"messages": chat_history, "begun": not add_generation_prompt}))

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the bundle's template for lm-eval's records. Raises BadInputError for a template name."""
        if isinstance(chat_template, str):
            raise BadInputError(
                f"unknown chat template {shown(chat_template)}",
                expected="--apply_chat_template without a name, since a bundle has at most one template",
                remedy="omit the name",
            )
        return self._decoder.tokenizer.chat_template() if chat_template else ""

    @cached_property
    def tokenizer_name(self) -> str:
        """Name that identifies the bundle in lm-eval's request cache."""
        return f"lopa-{self._decoder.bundle.manifest.weights_digest}"

    def get_model_info(self) -> dict[str, Any]:
        """Return the information that lm-eval stores with its results: bundle, device, and forwards per answer."""
        return {
            "lopa_bundle": self._decoder.bundle.path.resolve().name,
            "lopa_weights_digest": self._decoder.bundle.manifest.weights_digest,
            "lopa_device": self._decoder.session.device,
            "lopa_answers": self._answers,
            "lopa_steps": self._steps,
            "lopa_tokens": self._tokens_out,
            "lopa_tokens_per_forward": self._tokens_out / self._steps if self._steps else None,
        }

    def _request(self, number: int, context: str, kwargs: dict[str, Any]) -> Request:
        """Return request `number` of a call. When sampling, each request has its own seed."""
        options = options_from_kwargs(kwargs, default_tokens=self._tokens)
        resolved = self._decoder.resolve(GenerationConfig.from_mapping(self._options | options))
        config = resolved.config
        return Request(self._prompt(context), _with_own_seed(config, number) if resolved.params.temperature else config)

    def _prompt(self, context: str) -> Prompt:
        if not isinstance(context, ChatText):
            return context
        chat = json.loads(context)
        return Chat(chat["messages"], continues=chat["begun"])

    def _count(self, result: GenerationResult) -> None:
        self._answers += 1
        self._steps += result.steps
        self._tokens_out += result.tokens


def _with_own_seed(config: GenerationConfig, number: int) -> GenerationConfig:
    """Return `config` with a seed for request `number`.

    A sample depends only on seed, step and position. With one seed, all samples of a question would be equal.
    """
    assert config.seed is not None
    return replace(config, seed=config.seed + number)


def _slots(batch_size: int | str | None) -> int:
    if batch_size is None or batch_size == "auto":
        return MAX_NUM_SEQS
    if not str(batch_size).isdecimal() or not int(batch_size):
        raise BadInputError(
            f"invalid batch_size {shown(batch_size)}",
            expected="an integer from 1, or auto",
            remedy="use e.g. --batch_size 8",
        )
    return int(batch_size)
