"""Edits of a bundle after its export: decoding defaults and the chat template.

Both are in manifest.json, which is replaced atomically; no other file changes. Engines, cost tables and twins stay
valid, because they refer to digests of weights and graphs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME, Manifest, Preset
from lopa.runtime.bundle.manifest_checks import check_defaults, manifest_from_json
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_atomically
from lopa.runtime.generation_config import (
    DEFAULT_OPTIONS,
    NO_PRESET,
    checked_defaults,
    defaults_beside,
    options_from_defaults,
)

CHAT_TEMPLATE, PRESETS = "chat_template", "presets"
"""Names that `unset` takes to restore the exported chat template, and to remove the presets."""

_PRESET = "preset"


def edit_bundle(
    bundle: Bundle,
    *,
    defaults: Mapping[str, Any] | None = None,
    unset: Sequence[str] = (),
    chat_template: str | None = None,
    presets: Mapping[str, Preset] | None = None,
) -> Bundle:
    """Return `bundle` with `defaults` added, the defaults named in `unset` removed, and `chat_template` and `presets`
    set if they are not None. No file is written. An older default that conflicts with a new one is dropped. Raises
    BadInputError for invalid options, and for a name in `unset` that is not set.
    """
    manifest = bundle.manifest
    given = options_from_defaults(checked_defaults(defaults or {}))
    _check_unset(manifest, unset)
    if presets is None:
        presets = {} if PRESETS in unset else manifest.presets
    kept = {name: value for name, value in manifest.default_options.items() if name not in (*unset, *given)}
    if not _is_preset_kept(kept.get(_PRESET), presets, given):
        kept.pop(_PRESET, None)
    together = checked_defaults({**defaults_beside(manifest.decoding.options(), kept, given), **given})
    template = None if CHAT_TEMPLATE in unset else manifest.chat_template
    edited = msgspec.structs.replace(
        manifest,
        defaults={name: together[name] for name in DEFAULT_OPTIONS if name in together},
        chat_template=template if chat_template is None else chat_template,
        presets=dict(presets),
    )
    check_defaults(edited, is_new=True)
    return replace(bundle, manifest=edited)


def write_manifest(bundle: Bundle) -> None:
    """Write the manifest of `bundle` to its folder atomically.

    Raises BadInputError or OutputFailedError if it cannot be written. The old manifest then stays.
    """
    path = bundle.path / MANIFEST_NAME
    text = json_from_record(bundle.manifest)
    manifest_from_json(text, source=str(path))  # never write a manifest that cannot be opened
    write_atomically(path, text)


def _is_preset_kept(name: str | None, presets: Mapping[str, Preset], given: Mapping[str, Any]) -> bool:
    """Return True if the default preset still exists, and sets none of the `given` options."""
    if name is None or name == NO_PRESET:
        return True
    return name in presets and not set(presets[name].options) & set(given)


def _check_unset(manifest: Manifest, unset: Sequence[str]) -> None:
    template = [] if manifest.chat_template is None else [CHAT_TEMPLATE]
    names = [*manifest.defaults, *template, *([PRESETS] if manifest.presets else [])]
    for name in unset:
        if name not in names:
            raise BadInputError(
                f"cannot unset {name!r:.80}: it is not set",
                expected="one of " + ", ".join(names) if names else "nothing to unset: the bundle is as exported",
                remedy="unset one of these names" if names else "omit it",
            )
