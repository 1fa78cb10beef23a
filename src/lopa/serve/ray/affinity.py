"""Routing information of a request: its model, and keys of the beginnings of its prompt.

A replica keeps rows of the prompts and answers that it computed (docs/reference/python.md). The next turn of a
conversation begins with the messages of the turn before, so that it should go to the same replica. Rows can be shared
only if they attend to no later position. This module has no side effects.
"""

import hashlib
import json
import random
import time
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar

from lopa.runtime.bundle import Bundle
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.serve.answering.service import model_card
from lopa.serve.openai.body_options import LOPA_FIELD, PROMPT_FIELDS
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


MAX_PREFIXES = 64
"""Maximum number of keys of a request. Longer conversations use the last ones, which the turn before shares."""
_CONTEXT = ("cache_salt", "system", "instructions", "tools", "functions", "chat_template_kwargs")
"""Fields that change the beginning of a prompt, or separate the prefix caches of users."""
_CHARACTERS, _IDS = 512, 128
"""Size of the parts of a text and of a list of token ids."""
_KEY_BYTES = 8


@dataclass(frozen=True)
class Route:
    """Routing information of a request."""

    model: str
    """Name of a served model."""
    prefixes: tuple[str, ...] = ()
    """Keys of the beginnings of the prompt, the shortest first. Without any, all replicas are suitable."""


def route_from_body(body: Mapping[str, Any], endpoint: str, models: ServedModels) -> Route:
    """Return the route of an unchecked body. An invalid body may go to any replica, which rejects it."""
    model = body.get("model")
    if not isinstance(model, str) or model not in models.cards:
        return Route(next(iter(models.cards)))
    lopa_object = body.get(LOPA_FIELD)
    attention = lopa_object.get("attention") if isinstance(lopa_object, dict) else None
    attention = models.attention[model] if attention is None else attention
    if not isinstance(attention, str) or attention not in REUSABLE_ATTENTION or endpoint not in PROMPT_FIELDS:
        return Route(model)
    context = _digest(b"", [model, endpoint, {name: body[name] for name in _CONTEXT if body.get(name)}])
    chain = accumulate(_parts(body.get(PROMPT_FIELDS[endpoint])), _digest, initial=context)
    return Route(model, tuple(each.hex() for each in list(chain)[1:][-MAX_PREFIXES:]))


def _parts(prompt: Any) -> Iterator[Any]:
    """Yield the parts of a chat, a text or token ids in order."""
    if isinstance(prompt, str):
        return _slices(prompt, _CHARACTERS)
    if isinstance(prompt, list) and all(type(each) is int for each in prompt):
        return _slices(prompt, _IDS)
    return iter(prompt if isinstance(prompt, list) else [prompt])


def _slices(prompt: Any, size: int) -> Iterator[Any]:
    return (prompt[start : start + size] for start in range(0, len(prompt), size))


def _digest(before: bytes, part: Any) -> bytes:
    """Return a key of `part` and everything before it."""
    text = json.dumps(part, sort_keys=True)
    return hashlib.sha256(before + text.encode()).digest()[:_KEY_BYTES]


Replica = TypeVar("Replica", bound=Hashable)
MAX_ROUTES = 2**16
"""Maximum number of remembered prefixes: about 10 MB."""


class PrefixRoutes(Generic[Replica]):
    """The replica that last computed each prefix, for the most recently used prefixes."""

    def __init__(self, max_routes: int = MAX_ROUTES) -> None:
        self._max_routes = max_routes
        self._replicas: OrderedDict[str, Replica] = OrderedDict()

    def find(self, prefixes: Sequence[str], replicas: Collection[Replica]) -> Replica | None:
        """Return the one of `replicas` that computed the longest of `prefixes`, which are in ascending length."""
        for prefix in reversed(prefixes):
            replica = self._replicas.get(prefix)
            if replica is not None and replica in replicas:
                return replica
        return None

    def record(self, prefixes: Sequence[str], replica: Replica) -> None:
        """Remember that `replica` computes `prefixes`. Longer ones are forgotten before shorter ones."""
        for prefix in reversed(prefixes):
            self._replicas[prefix] = replica
            self._replicas.move_to_end(prefix)
        while len(self._replicas) > self._max_routes:
            self._replicas.popitem(last=False)


def ranked_replicas(home: Replica | None, requests: Mapping[Replica, int], max_excess: int) -> list[list[Replica]]:
    """Return the replicas in groups, to try in turn, from the number of unfinished `requests` of each.

    The first one is `home`, which has the longest prefix, unless it has at least `max_excess` requests more than some
    other replica. Replicas with fewer requests come first, and equally busy ones are in one group in random order.
    """
    fewest = min(requests.values(), default=0)
    first = [home] if home is not None and requests[home] < fewest + max_excess else []
    others = [each for each in random.sample(list(requests), len(requests)) if each not in first]
    groups = [[each for each in others if requests[each] == count] for count in sorted({requests[i] for i in others})]
    return [group for group in [first, *groups] if group]
