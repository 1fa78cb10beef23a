"""Properties of an application's bundles that are known before any bundle is opened on a device."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lopa.runtime.bundle import Bundle
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.serve.answering.service import model_card
from lopa.serve.ray.ray_options import NamedBundle

REUSABLE_ATTENTION = ("block_causal", "causal")
"""Kinds of attention in which rows are independent of later positions, so that requests can share them."""


@dataclass(frozen=True)
class ServedModels:
    """Models of an application by name, in the order of its options."""

    cards: Mapping[str, Mapping[str, Any]]
    """Model cards of /v1/models."""
    attention: Mapping[str, str]
    """Default attention of each model."""

    @property
    def first(self) -> str:
        """Name of the model that receives requests without a served model."""
        return next(iter(self.cards))


def models_from_bundles(bundles: tuple[NamedBundle, ...]) -> ServedModels:
    """Return the models of the bundles, from their manifests and tokenizers. Raises BadInputError for a missing or
    broken bundle."""
    created = int(time.time())
    cards, attention = {}, {}
    for each in bundles:
        bundle = Bundle.open(each.path)
        chats = Tokenizer.open(bundle).has_chat_template
        cards[each.model] = model_card(each.model, created, bundle.manifest, chats=chats)
        attention[each.model] = bundle.manifest.params().attention
    return ServedModels(cards, attention)
