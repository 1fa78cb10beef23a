"""Reference mode: the loops of published code, with their quirks (docs/concepts/decoding.md, "Reference mode")."""

from dataclasses import replace

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.decoding.extension import LoopState, Start
from lopa.runtime.decoding.round import RoundEnd
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.answer_state import AnswerState, StopReason
from lopa.runtime.state.branch import Branch, is_end, length_to_end, unmasked_length
from lopa.runtime.state.context import Context

LLADA2 = "llada2-moe"
"""Architecture whose published loops differ from SDAR's."""


class ReferenceMode:
    """The end of a published loop, and what it returns."""

    def __init__(self, params: DecodingParams, model: Manifest) -> None:
        self._is_llada2 = model.architecture == LLADA2
        self._stops_early = self._is_llada2 and params.eos_early_stop and not params.edits
        self._ends = model.special_tokens.ends if params.stop_at_eos else ()

    def start(self, context: Context, branches: tuple[Branch, ...]) -> Start:
        """Return the constants of the published loop.

        LLaDA2.0's overwrites no unmasked token. LLaDA2.1's stops at an end of text only with eos_early_stop, but its
        answer ends there.
        """
        params = context.params
        if self._is_llada2:
            context = replace(context, params=replace(params, overwrites_unmasked=False))
        if params.edits and not params.eos_early_stop:
            context = replace(context, ends=())
        return context, branches

    def answer(self, loop: LoopState, answer: AnswerState, end: RoundEnd | None) -> AnswerState:
        """Return the answer of the published loop, which returns every generated position once it has ended.

        LLaDA2.0's loop stops early if a step unmasked an end of text and left nothing masked before the first one. It
        searches the prompt too: an end of text there leaves no answer. It does not cut an answer that ends behind
        max_new_tokens.
        """
        anchor = loop.anchor
        final = unmasked_length(anchor)
        length = length_to_end(anchor.tokens[answer.start : answer.start + final], self._ends)
        reason: StopReason | None = "step_limit" if loop.steps >= loop.context.params.step_limit else None
        if all(is_done(branch, loop.context) for branch in loop.branches):
            reason = "length" if length is None else "eos"
        final = final if length is None else length
        if self._is_llada2:
            final = min(final, loop.context.params.max_new_tokens)
        if self._stops_early and end is not None and is_end(end.unmasked[-1].tokens, self._ends).any():
            first = int(is_end(anchor.tokens, self._ends).argmax())
            if anchor.unmasked[answer.start : first].all():
                final, reason = max(0, first + 1 - answer.start), "eos"
        return answer._replace(final=final, stop_reason=reason, returns_generated=reason is not None)


def is_done(branch: Branch, context: Context) -> bool:
    """Return True if the published loop needs no further round for `branch` (section 4, point 3).

    That loop also searches the prompt for the mask token, and then caches the last block once more (quirk 4). The loops
    of Fast-dLLM and Dream, which keep the rows of the whole answer, do neither.
    """
    if branch.active or (branch.blocks[-1].end < branch.layout.end and not branch.ended):
        return False
    masks_in_prompt = (branch.tokens[: branch.layout.prompt] == context.mask_token).any()
    return branch.layout.whole or not branch.due or not masks_in_prompt
