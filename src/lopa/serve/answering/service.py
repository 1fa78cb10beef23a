"""What is served: one engine, its name and what clients are allowed."""

import hashlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from lopa import __version__
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.engine import Engine
from lopa.runtime.grammar.limits import GrammarLimits
from lopa.serve.http.keys import ApiKeys
from lopa.serve.limits import ServeLimits
from lopa.serve.metrics import ServeMetrics
from lopa.serve.openai.answer import TextOfIds
from lopa.serve.openai.options import CHATS, COMPLETIONS

_PREPARING = 2
"""Threads in which prompts become ids, so that a long one holds up nobody."""
_PREPARING_GRAMMARS = GrammarLimits().processes
"""Threads in which requests with a grammar are prepared, apart from those of other requests. They wait for the helper
process and compile what it has found good."""


@dataclass(frozen=True, eq=False)
class Service:
    """All that the app knows."""

    engine: Engine
    name: str
    """Of the model."""
    text_of_ids: TextOfIds
    limits: ServeLimits
    metrics: ServeMetrics
    keys: ApiKeys | None = None
    """None: everybody is let in."""
    catalog: Mapping[str, Mapping[str, Any]] | None = None
    """Cards of all models that clients may ask for here, by name; None: of this one alone."""
    threads: ThreadPoolExecutor = field(init=False)
    """For requests without a grammar."""
    grammar_threads: ThreadPoolExecutor = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    fingerprint: str = field(init=False)
    """Of all that an answer depends on beside its request: this program and the bundle."""

    def __post_init__(self) -> None:
        """Raises BadInputError for defaults of the bundle beyond the limits."""
        self.limits.check_defaults(self.engine.manifest.defaults)
        digest = hashlib.sha256(json_from_record(self.engine.manifest)).hexdigest()[:12]
        object.__setattr__(self, "fingerprint", f"lopa-{__version__}-{digest}")
        object.__setattr__(self, "threads", ThreadPoolExecutor(_PREPARING, "lopa-serve"))
        object.__setattr__(self, "grammar_threads", ThreadPoolExecutor(_PREPARING_GRAMMARS, "lopa-grammar"))

    @property
    def cards(self) -> Mapping[str, Mapping[str, Any]]:
        """The models as /v1/models tells of them, by name."""
        if self.catalog is not None:
            return self.catalog
        engine = self.engine
        return {self.name: card_of_model(self.name, self.created, engine.manifest, chats=engine.has_chat_template)}

    def close(self) -> None:
        """End the engine, which cancels what runs, and the threads."""
        self.engine.close()
        self.threads.shutdown()
        self.grammar_threads.shutdown()


def card_of_model(name: str, created: int, manifest: Manifest, *, chats: bool) -> dict[str, Any]:
    """What clients are told of a model, in service since `created` (seconds since 1970); `chats`: it takes them."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "lopa-export",
        "max_model_len": manifest.dimensions.max_positions,
        "endpoints": [CHATS, COMPLETIONS] if chats else [COMPLETIONS],
    }
