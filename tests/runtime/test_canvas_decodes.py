"""Decodes of canvases through Decoder: batches, seeds, drafts, limits, and refusals by name."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.canvas_checkpoints import FOLDER, canvas_model
from tests.runtime.canvas_decodes import QUESTIONS, CanvasDecodes, chat

from lopa import BadInputError, Decoder, Engine
from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.verify.report import report_from_bundle
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import edit_bundle
from lopa.runtime.sessions.onnxruntime_graph import open_part_graph
from lopa.runtime.sessions.session import open_session

STANDARD, PORTABLE = "canvas_bundle", "canvas_portable"


@pytest.fixture(scope="module")
def decoder(canvas_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(canvas_bundle, ["cpu"], threads=1) as opened:
        yield opened


@pytest.fixture(scope="module", params=["cpu", "cpu, portable", "openvino:CPU"])
def each_graph(request: pytest.FixtureRequest, canvas_bundle: Path, canvas_portable: Path) -> Iterator[Decoder]:
    device, _, portable = request.param.partition(", ")
    if device != "cpu":
        pytest.importorskip("openvino")
    with Decoder.open(canvas_portable if portable else canvas_bundle, [device], threads=1) as opened:
        yield opened


class TestGraphs(CanvasDecodes):
    @pytest.fixture
    def decoder(self, each_graph: Decoder) -> Decoder:
        return each_graph


@pytest.mark.parametrize(("name", "device"), [(STANDARD, "cpu"), (PORTABLE, "cpu"), (STANDARD, "openvino:CPU")])
def test_the_bundle_agrees_with_transformers(request: pytest.FixtureRequest, name: str, device: str) -> None:
    if device != "cpu":
        pytest.importorskip("openvino")
    bundle = Bundle.open(request.getfixturevalue(name))
    report = report_from_bundle(bundle, checkpoint=FOLDER / "canvas16", device=device)
    assert report.cases in (7, 14), "prompts around the window of 16, also for a mapped graph"
    assert {error.reference for error in report.errors} == {"numpy", "transformers"}
    assert {"logits", "entropy", "drawn_ids"} <= {error.output for error in report.errors}
    assert [error for error in report.errors if not error.ok] == []


def test_int4_agrees_with_transformers_on_its_own_weights(canvas_bundle_int4: Path) -> None:
    report = report_from_bundle(Bundle.open(canvas_bundle_int4), checkpoint=FOLDER / "canvas16")
    assert [error for error in report.errors if not error.ok] == []
    assert any("experts" in error.output or "in steps" in error.output for error in report.errors)


def test_the_embedding_is_not_copied(canvas_bundle_int4: Path) -> None:
    bundle = Bundle.open(canvas_bundle_int4)
    graph = open_part_graph(bundle, bundle.manifest.dimensions.whole_model, "cpu", None)
    assert graph.get_session_options().get_session_config_entry("session.disable_prepacking") == "1"


def test_seeds(decoder: Decoder) -> None:
    first, second = (decoder.generate(chat(QUESTIONS[1])) for _ in range(2))
    assert first.seed != second.seed
    assert decoder.generate(chat(QUESTIONS[1]), seed=first.seed).token_ids == first.token_ids


def test_a_temperature_multiplies_those_of_the_steps(decoder: Decoder) -> None:
    steps: dict[float, list[float | None]] = {}
    for temperature in (1.0, 0.5):
        found = steps.setdefault(temperature, [])
        result = decoder.generate(
            *(chat(QUESTIONS[0]),),
            seed=3,
            temperature=temperature,
            on_step=lambda _, step, found=found: found.append(step.rows.temperature),
        )
        usual = decoder.generate(chat(QUESTIONS[0]), seed=3, t_max=0.8 * temperature, t_min=0.4 * temperature)
        assert result.token_ids == usual.token_ids
    assert steps[1.0][0] == pytest.approx(0.8)
    assert steps[0.5][0] == pytest.approx(0.4)


def test_options_of_draws_from_all_tokens_change_nothing(decoder: Decoder) -> None:
    usual = decoder.generate(chat(QUESTIONS[0]), seed=3)
    assert decoder.generate(chat(QUESTIONS[0]), seed=3, top_p=1.0, top_k=0).token_ids == usual.token_ids


def test_branches_are_refused_in_reference_mode(decoder: Decoder) -> None:
    with pytest.raises(BadInputError, match="2 branches in reference mode"):
        decoder.generate("3", branches=2, reference=True)


def test_int8_opens_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"quantization": QuantizationChoice("int8"), "with_logits": True}
    bundle = bundle_from_checkpoint(FOLDER / "canvas16", tmp_path / "int8", **plan)
    for form in ("packed", "mapped"):
        monkeypatch.setenv("LOPA_WEIGHTS", form)
        assert [error for error in report_from_bundle(bundle).errors if not error.ok] == []


@pytest.mark.parametrize("defaults", [{"strategy": "eb"}, {"block_size": 8}])
def test_defaults_that_no_request_could_use_are_refused(canvas_bundle: Path, defaults: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match=rf"{next(iter(defaults))} .* by default"):
        edit_bundle(Bundle.open(canvas_bundle), defaults=defaults)


def test_limits(decoder: Decoder) -> None:
    whole = decoder.generate(chat(QUESTIONS[0]), seed=3)
    assert whole.stop_reason == "eos"
    assert whole.text.startswith("3, 4, 5, 6, 7, 8, 9")
    assert decoder.generate(chat(QUESTIONS[0]), seed=3, max_new_tokens=5).token_ids == whole.token_ids[:5]
    assert decoder.generate(chat(QUESTIONS[0]), seed=3, stop="7").text == "3, 4, 5, 6, "
    cut = decoder.generate(chat(QUESTIONS[0]), seed=3, max_forwards=2)
    assert (cut.text, cut.stop_reason, cut.steps) == ("", "step_limit", 2)
    drafted = decoder.generate(chat(QUESTIONS[0]), seed=3, max_forwards=2, anytime=True)
    assert drafted.text
    assert drafted.draft_probability is not None


def test_prompts_share_causal_rows(canvas_bundle: Path) -> None:
    with Decoder.open(canvas_bundle, ["cpu"]) as decoder:
        prompt = decoder.generate(chat(QUESTIONS[1] * 4), seed=1).prompt_ids
        before = decoder.generate(list(prompt), seed=1)
    with Engine.open(canvas_bundle, ["cpu"]) as engine:
        results = [engine.submit(list(prompt), seed=1).result() for _ in range(2)]
    assert [each.token_ids for each in results] == [before.token_ids] * 2
    assert [each.cached_tokens for each in results] == [0, len(prompt) // 16 * 16]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0}, {"t_max": 1e-44}, {"entropy_bound": 1e308},
        {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"logprobs": True}, {"regex": "[0-9]+"},
        {"json_schema": {"type": "object"}}, {"choices": ["a", "b"]}, {"branches": "auto"}, {"speculative": True},
        {"presence_penalty": 1.0}, {"logit_bias": {5: 1.0}}, {"remask_threshold": 0.5}, {"t_max": 0.3},
        {"alignment": "absolute"}, {"attention": "block_causal"}, {"cache": "none"}, {"block_size": 8},
        {"strategy": "lopa"},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_what_canvases_lack_is_refused_by_name(decoder: Decoder, options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError) as caught:
        decoder.generate("3", **options)
    assert next(iter(options)) in caught.value.received


def test_other_models_refuse_the_strategy(tiny_bundle: Path) -> None:
    with Decoder.open(tiny_bundle, ["numpy"]) as decoder, pytest.raises(BadInputError, match="strategy 'canvas'"):
        decoder.generate("1+1=", strategy="canvas")


OTHERS = ["openvino:GPU", "openvino:CPU:bf16", "cpu+cpu", "cuda:0+cuda:0", "tensorrt:0", "ascend:0", "qnn"]


@pytest.mark.parametrize("device", OTHERS)
def test_other_devices_refuse_the_bundle_by_name(canvas_bundle: Path, device: str) -> None:
    with pytest.raises(BadInputError, match=r"bundle with canvases .*contract version 2"):
        open_session(Bundle.open(canvas_bundle), device)


def test_webgpu_refuses_int8_by_name(canvas_bundle_int4: Path) -> None:
    bundle = Bundle.open(canvas_bundle_int4)
    assert bundle.manifest.quantization is not None
    int8 = msgspec.structs.replace(bundle.manifest.quantization, kind="int8")
    changed = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, quantization=int8))
    with pytest.raises(BadInputError, match="with canvases and int8 matrices"):
        open_session(changed, "webgpu:0")


def test_several_devices_refuse_the_bundle_by_name(canvas_bundle: Path) -> None:
    with pytest.raises(BadInputError, match="for a bundle with canvases"):
        Decoder.open(canvas_bundle, ["cpu:0", "cpu:1"])


def test_holes_are_refused_by_name(decoder: Decoder) -> None:
    with pytest.raises(BadInputError, match="holes for a model with canvases"):
        decoder.fill("3, 4, <hole:1>, 6")


def test_the_manifest_has_contract_2(canvas_bundle: Path) -> None:
    manifest = Bundle.open(canvas_bundle).manifest
    assert manifest.contract == 2
    assert manifest.dimensions == canvas_model("canvas16")[0].dimensions
    assert np.isclose(manifest.defaults["t_min"], 0.4)
