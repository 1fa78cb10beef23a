"""The bundles of an application as they are known before any of them is opened on a device."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lopa.runtime.bundle import Bundle
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.serve.answering.service import card_of_model
from lopa.serve.ray.options import NamedBundle

REUSED = "block_causal"
"""The window with which rows of a prompt are the same for every request that has it."""


@dataclass(frozen=True)
class ServedModels:
    """All of an application, by name, in the order of its options."""

    cards: Mapping[str, Mapping[str, Any]]
    """What /v1/models tells of each."""
    windows: Mapping[str, str]
    """What a request has that does not say."""

    @property
    def first(self) -> str:
        """The one that answers what is not for any of them."""
        return next(iter(self.cards))


def models_of_bundles(bundles: tuple[NamedBundle, ...]) -> ServedModels:
    """Reads their manifests and tokenizers. Raises BadInputError for one that is not there or is broken."""
    created = int(time.time())
    cards, windows = {}, {}
    for each in bundles:
        bundle = Bundle.open(each.path)
        chats = Tokenizer.open(bundle).has_chat_template
        cards[each.model] = card_of_model(each.model, created, bundle.manifest, chats=chats)
        windows[each.model] = bundle.manifest.plan().window
    return ServedModels(cards, windows)
