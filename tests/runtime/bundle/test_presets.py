"""Presets: options by name in a bundle, chosen by a request, by a default, or not at all."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import PRESETS, edit_bundle, write_manifest
from lopa.runtime.bundle.manifest import MANIFEST_NAME, Manifest, Preset
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig

QUICK = {"strategy": "threshold", "skip_threshold": 0.8, "unmask_first_masked": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "balanced": {**QUICK, "skip_threshold": 0.95},
    "fast": QUICK,
    "wide": {"strategy": "lopa", "branches": 3},
}


def preset(options: dict[str, Any], devices: tuple[str, ...] = ("cpu",)) -> Preset:
    return Preset(options=options, devices=list(devices), measured="score 80 %")


@pytest.fixture
def tuned(tiny_bundle: Path, tmp_path: Path) -> Bundle:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "tuned"))
    presets = {name: preset(options) for name, options in OPTIONS.items()}
    bundle = edit_bundle(Bundle.open(folder), defaults={"preset": "balanced"}, presets=presets)
    write_manifest(bundle)
    return Bundle.open(folder)


def planned(manifest: Manifest, devices: tuple[str, ...] = ("cpu",), **options: Any) -> dict[str, Any]:
    plan = manifest.params(GenerationConfig(**options), devices)
    return {name: getattr(plan, name) for name in ("strategy", "skip_threshold", "unmask_first_masked", "branches")}


def test_a_request_uses_the_named_preset_and_its_own_options(tuned: Bundle) -> None:
    manifest = tuned.manifest
    assert planned(manifest, preset="fast") == {**QUICK, "branches": 1}
    assert planned(manifest, preset="fast", skip_threshold=0.7) == {**QUICK, "skip_threshold": 0.7, "branches": 1}
    assert planned(manifest, preset="wide", branches=2)["branches"] == 2
    assert manifest.resolve(GenerationConfig(preset="fast")).preset == "fast"


def test_the_default_preset_applies_unless_a_request_chooses_otherwise(tuned: Bundle, tiny_bundle: Path) -> None:
    manifest, plain = tuned.manifest, Bundle.open(tiny_bundle).manifest
    assert planned(manifest)["skip_threshold"] == 0.95
    assert planned(manifest, max_new_tokens=8)["skip_threshold"] == 0.95
    assert planned(manifest, preset="none") == planned(plain)
    for options in ({"strategy": "lopa"}, {"strategy": "eb"}, {"reference": True}):
        assert planned(manifest, **options) == planned(plain, **options), options


@pytest.mark.parametrize(
    ("devices", "applies"),
    [
        (("cpu",), True),
        (("cpu:0-1",), True),
        (("cuda:0",), False),
        (("cpu", "cpu"), False),
    ],
)
def test_the_default_preset_needs_devices_like_those_it_was_measured_on(
    tuned: Bundle, tiny_bundle: Path, devices: tuple[str, ...], applies: bool
) -> None:
    plain = Bundle.open(tiny_bundle).manifest
    expected = {**QUICK, "skip_threshold": 0.95, "branches": 1} if applies else planned(plain, devices)
    assert planned(tuned.manifest, devices) == expected
    assert planned(tuned.manifest, devices, preset="fast")["skip_threshold"] == 0.8  # a named preset always applies


def test_preset_options_replace_defaults_and_conflicting_defaults_are_dropped(tuned: Bundle) -> None:
    older = edit_bundle(tuned, defaults={"strategy": "eb", "gamma": 0.3, "max_new_tokens": 9, "preset": "fast"})
    assert older.manifest.params().strategy == "threshold"
    assert older.manifest.params().max_new_tokens == 9
    assert older.manifest.params(GenerationConfig(preset="none")).strategy == "eb"


def test_unset_removes_the_presets_and_the_default(tuned: Bundle) -> None:
    edited = edit_bundle(tuned, unset=[PRESETS])
    assert (edited.manifest.presets, edited.manifest.defaults) == ({}, {})
    with pytest.raises(BadInputError, match="cannot unset 'presets'"):
        edit_bundle(edited, unset=[PRESETS])


def test_an_unknown_preset_is_rejected_with_the_known_ones(tuned: Bundle, tiny_bundle: Path) -> None:
    with pytest.raises(BadInputError, match="unknown preset 'slow'\n  expected: one of balanced, fast, wide, none"):
        tuned.manifest.params(GenerationConfig(preset="slow"))
    with pytest.raises(BadInputError, match=r"unknown preset .fast.\n  expected: no preset\n.*lopa-export tune"):
        Bundle.open(tiny_bundle).manifest.params(GenerationConfig(preset="fast"))
    with pytest.raises(BadInputError, match="unknown preset 'slow'"):
        edit_bundle(tuned, defaults={"preset": "slow"})


@pytest.mark.parametrize(
    ("presets", "message"),
    [
        ({"none": preset(QUICK)}, "preset 'none'"),
        ({"fast": preset({"preset": "fast"})}, "options preset"),
        ({"fast": preset({"strategy": "vanilla", "branches": 4})}, "branches 4"),
        ({"Fast!": preset(QUICK)}, "presets"),
    ],
)
def test_an_invalid_preset_in_a_manifest_is_rejected(tuned: Bundle, presets: dict[str, Preset], message: str) -> None:
    path = tuned.path / MANIFEST_NAME
    content = json.loads(path.read_text())
    content["presets"] = {name: fields_of(each) for name, each in presets.items()}
    content["defaults"] = {}
    path.write_text(json.dumps(content))
    with pytest.raises(BadInputError, match=message):
        Bundle.open(tuned.path)


def fields_of(each: Preset) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__struct_fields__}


def test_a_tuned_bundle_decodes_with_its_preset_by_default(tuned: Bundle) -> None:
    prompt = "Question: Omar has 6 balloons. Nina has 2 more balloons than Omar. How many are there?\nAnswer:"
    with Decoder.open(tuned.path, threads=1) as decoder:
        by_default = decoder.generate(prompt, max_new_tokens=40)
        named = decoder.generate(prompt, max_new_tokens=40, **OPTIONS["balanced"])
        plain = decoder.generate(prompt, max_new_tokens=40, preset="none")
        assert decoder.resolve(decoder.config()).preset == "balanced"
        assert decoder.resolve(decoder.config(strategy="eb")).preset is None
    assert (by_default.text, by_default.steps) == (named.text, named.steps)
    assert plain.steps != by_default.steps
    with Decoder.open(tuned.path, threads=1, defaults={"preset": "fast"}) as decoder:
        assert decoder.params().skip_threshold == 0.8
