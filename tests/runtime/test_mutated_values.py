"""Untrusted values for parsers without a device: each returns a valid value or raises our error."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lopa.runtime.bundle.manifest import MANIFEST_NAME, Manifest
from lopa.runtime.bundle.manifest_checks import manifest_from_json
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import object_from_json
from lopa.runtime.generation_config import GenerationConfig, resolve

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
OPTIONS = st.sampled_from(sorted(GenerationConfig.__dataclass_fields__))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(OPTIONS, JSON, max_size=3))
def test_options_give_a_config_or_an_error(values: dict[str, Any]) -> None:
    with suppress(BadInputError):
        assert 1 <= resolve(GenerationConfig.from_mapping(values)).max_new_tokens < 2**31


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_bytes_give_an_object_or_an_error(text: bytes) -> None:
    with suppress(BadInputError):
        assert isinstance(object_from_json(text, source="it", expected="an object", remedy="mend it"), dict)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_bytes_give_a_manifest_or_an_error(tiny_bundle: Path, seed: int) -> None:
    text = bytearray((tiny_bundle / MANIFEST_NAME).read_bytes())
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 4)):
        text[rng.randrange(len(text))] = rng.choice(b'0123456789{}[],:"-. e\xff\x00')
    with suppress(BadInputError):
        assert isinstance(manifest_from_json(bytes(text), source="it"), Manifest)
