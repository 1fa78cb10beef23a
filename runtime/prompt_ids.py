"""A prompt as it was given, text or ids, checked and as ids. Knows the bundle's limits, no session."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.manifest import Manifest
from lopa.runtime.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class PromptRequest:
    """A prompt with decoding options of its own."""

    prompt: Prompt
    config: GenerationConfig


def ids_from_prompt(prompt: Prompt, config: GenerationConfig, tokenizer: Tokenizer, manifest: Manifest) -> Int64:
    """Ids [length] of text, to which a beginning-of-text is added as the bundle says, or of ids, taken as they are.

    Raises BadInputError for an empty prompt, ids outside the vocabulary, and a prompt that leaves no room for the
    answer.
    """
    ids = tokenizer.encode(prompt, add_bos=manifest.decoding.add_bos) if isinstance(prompt, str) else prompt
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
