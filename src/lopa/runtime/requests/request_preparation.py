"""From a Request to a checked Job: its options are resolved once, and its prompt becomes token IDs."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import CostTable, costs_from_bundle, costs_name
from lopa.runtime.chat.chat import Chat
from lopa.runtime.chat.prepared_chat import PLAIN, AnswerForm, prepare_chat
from lopa.runtime.checked_values import MAX_SECONDS, check_bool, check_callback, check_float
from lopa.runtime.contract import Int64
from lopa.runtime.decoding.branch_budget import BranchBudget
from lopa.runtime.decoding.candidates import missing_logits
from lopa.runtime.decoding.growing_holes import check_growth
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError, PromptTooLongError, raise_if_from_handler
from lopa.runtime.generation_config import GenerationConfig, ResolvedOptions
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.grammar.grammar_of_holes import config_of_expressions
from lopa.runtime.grammar.request_grammars import RequestGrammars
from lopa.runtime.options import DecodingParams
from lopa.runtime.options.hole_params import params_for_holes
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.job import Job
from lopa.runtime.requests.request import Prompt, Request, changed_config, check_cache_salt
from lopa.runtime.row_sharing import FasterSharing, always
from lopa.runtime.scoring.requested_choices import choices_from_option
from lopa.runtime.state.choice_scores import EncodedChoice
from lopa.runtime.state.context import check_editing
from lopa.runtime.state.packed_rows import SharingTest
from lopa.runtime.text.encoded_holes import EncodedHoles, encode_lengths
from lopa.runtime.text.prompt_ids import ids_from_prompt
from lopa.runtime.text.text_with_holes import TextWithHoles
from lopa.runtime.text.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)


class _Encoded(NamedTuple):
    """A prompt as IDs, with the options that it changed and the form of its answer."""

    ids: Int64
    resolved: ResolvedOptions
    choices: tuple[EncodedChoice, ...] | None = None
    holes: EncodedHoles | None = None
    form: AnswerForm = PLAIN


class RequestPreparation:
    """Makes the requests for one bundle on its devices ready. Every front end's requests pass through `job`."""

    def __init__(
        self, bundle: Bundle, tokenizer: Tokenizer, device: str, threads: int | None, limits: GrammarLimits | None
    ) -> None:
        self.bundle, self.tokenizer = bundle, tokenizer
        self.device = device
        """Names of the devices that share the branches, joined by commas."""
        self.grammars = RequestGrammars(bundle, tokenizer, limits)
        self._threads = threads

    def resolve(self, config: GenerationConfig) -> ResolvedOptions:
        """Return the value of every option here. Raises BadInputError for an invalid combination."""
        return self.bundle.manifest.resolve(config, self.device.split(","))

    def job(
        self,
        request: Request,
        *,
        deadline: float | None = None,
        drafts: bool = False,
        on_step: Callable[[Step], None] | None = None,
        is_wanted: Callable[[], bool] | None = None,
    ) -> Job:
        """Return the checked request; `deadline` is in seconds from now.

        Preparing its grammar stops once `is_wanted` returns False, with PreparationStoppedError, or once the deadline
        has passed, without an error. Raises as Decoder.stream does, and for an invalid deadline.
        """
        submitted = time.perf_counter()
        ids, resolved, choices, holes, form = self._encoded(request)
        params = resolved.params
        check_callback(on_step)
        due = None if deadline is None else submitted + check_float("deadline", deadline, min=0.0, max=MAX_SECONDS)
        _LOG.debug("a request with %s", params)
        return Job(
            prompt_ids=ids,
            resolved=resolved,
            budget=BranchBudget(self.cost_table) if params.auto_branches else None,
            sharing=self._sharing(params),
            grammar=None
            if choices
            else self.grammars.state_in_time(resolved.config, params, ids, holes, is_wanted=is_wanted, due=due),
            choices=choices,
            handle=RequestHandle(form, len(ids)),
            drafts=check_bool("drafts", drafts),
            on_step=on_step,
            submitted=submitted,
            deadline=due,
            holes=holes,
            cache_salt=check_cache_salt(request.cache_salt),
        )

    def _encoded(self, request: Request) -> _Encoded:
        prompt, config, form = request.prompt, changed_config(request.config, {}), PLAIN
        if isinstance(prompt, TextWithHoles):
            return self._encoded_holes(prompt, config)
        if isinstance(prompt, Chat):
            prompt, resolved, form = prepare_chat(prompt, config, self.tokenizer, self.grammars, self.resolve)
        else:
            resolved = self.resolve(config)
        params = resolved.params
        self._check_plan(params)
        choices = None
        if config.choices is not None:
            choices = choices_from_option(
                config.choices, self.tokenizer, self.bundle.manifest, special_tokens=params.special_tokens
            )
        ids = self._prompt_ids(prompt, replace(params, positions=1) if request.shortens else params, choices)
        left = self.bundle.manifest.dimensions.max_positions - len(ids)
        if request.shortens and left < params.positions:
            resolved = self.resolve(replace(resolved.config, max_new_tokens=left))
        return _Encoded(ids, resolved, choices, form=form)

    def _encoded_holes(self, text: TextWithHoles, config: GenerationConfig) -> _Encoded:
        """Return a text with holes, whose options are those of one block from its first hole to its last one."""
        manifest = self.bundle.manifest
        if manifest.origin.adapter and config.attention != "full":
            raise BadInputError(
                "holes for a bundle with a D2F adapter, whose rows attend to earlier blocks only",
                expected="a model whose rows attend to the text on both sides, e.g. LLaDA, or Dream without a D2F "
                "adapter",
                remedy="export the checkpoint without its adapter; attention full tries the adapter anyway",
            )
        config = config_of_expressions(config, text)
        holes = encode_lengths(
            text,
            self.tokenizer,
            manifest,
            special_tokens=config.special_tokens,
            in_turn=config.block_size is not None,
            token_healing=not config.has_grammar,
        )
        branches = 1 if holes.grows and config.branches is None else config.branches
        resolved = self.resolve(replace(config, max_new_tokens=holes.count, branches=branches))
        params = params_for_holes(
            resolved.params, holes.holes, block_size=config.block_size, lengths=len(holes.lengths), grows=holes.grows
        )
        if holes.grows:
            check_growth(params)
        self._check_plan(params)
        return _Encoded(holes.ids, replace(resolved, params=params), holes=holes)

    def _check_plan(self, params: DecodingParams) -> None:
        """Raise BadInputError for options that the bundle's model does not support."""
        manifest = self.bundle.manifest
        if params.draws_from_logits and not params.has_choices and not manifest.with_logits:
            raise missing_logits(params)
        if params.slides and manifest.prediction_shift:
            raise BadInputError(
                f"cannot use alignment 'sliding' for a bundle of architecture {manifest.architecture!r}",
                expected="a model whose rows predict their own positions",
                remedy="remove alignment, to use the bundle's own",
            )
        check_editing(params, manifest.prediction_shift)

    def _prompt_ids(self, prompt: Prompt, params: DecodingParams, choices: Sequence[EncodedChoice] | None) -> Int64:
        """Return the ids of a prompt that leaves room for the answer, or for the longest of its choices."""
        manifest = self.bundle.manifest
        if choices is None:
            return ids_from_prompt(prompt, params, self.tokenizer, manifest)
        longest = max(len(choice.token_ids) for choice in choices)
        try:
            return ids_from_prompt(prompt, replace(params, positions=longest), self.tokenizer, manifest)
        except PromptTooLongError as error:
            positions = manifest.dimensions.max_positions
            raise PromptTooLongError(
                f"the prompt and its longest choice, {longest} tokens, exceed the model's {positions} positions",
                expected="a prompt and choices that fit",
                remedy="shorten the prompt or the choices",
            ) from error

    @cached_property
    def has_costs(self) -> bool:
        """True if branches="auto" works here. A warning says why the bundle's cost table does not apply."""
        try:
            return bool(self.cost_table)
        except BadInputError as error:
            raise_if_from_handler(error)
            if (self.bundle.path / costs_name(self.device)).is_file():
                _LOG.warning("branches=auto is left out: %s", error)
            return False

    @cached_property
    def cost_table(self) -> CostTable:
        """Cost table of this bundle on this device, read on first use."""
        return costs_from_bundle(self.bundle, self.device, self._threads)

    @cached_property
    def _faster_sharing(self) -> FasterSharing:
        """Sharing rule from the device's cost table, or from the model's sizes without one."""
        try:
            table = self.cost_table
        except BadInputError as error:
            raise_if_from_handler(error)
            table = None
        return FasterSharing(self.bundle.manifest, table)

    def _sharing(self, params: DecodingParams) -> SharingTest | None:
        """Return the rule for computing equal rows of several branches once, or None to compute them separately."""
        if params.deduplicate_rows == "auto":
            return self._faster_sharing
        return always if params.deduplicate_rows == "always" else None
