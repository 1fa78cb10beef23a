from typing import Any

import pytest

from lopa.export.checkpoint.family_choice import family_of_config
from lopa.export.families import FAMILIES
from lopa.export.json_file import JsonValues
from lopa.runtime.errors import BadInputError

AUTOREGRESSIVE = {
    "qwen2": ["dream", "fast-dllm-v2", "wedlm"],
    "qwen3": ["sdar", "wedlm"],
    "qwen3_moe": ["sdar-moe"],
    "llama": ["stable-diffcoder"],
}

OTHERS = [*FAMILIES][1:] + [*FAMILIES][:1]
"""The next family of each."""


def _config(model_type: Any, *classes: Any) -> JsonValues:
    return JsonValues({"model_type": model_type, "architectures": list(classes)}, "config.json", "look")


def _refusal(config: JsonValues, requested: str | None = None) -> str:
    with pytest.raises(BadInputError) as caught:
        family_of_config(config, requested)
    return str(caught.value)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_published_checkpoint_is_recognized_and_may_be_requested(name: str) -> None:
    family = FAMILIES[name]
    alone = not family.shares_model_type and family.marker is None
    for classes in (family.classes, (*family.classes, "Other"), () if alone else family.classes):
        for requested in (None, name):
            assert family_of_config(_config(family.model_type, *classes), requested) is family


@pytest.mark.parametrize(("name", "other"), [*zip(FAMILIES, OTHERS, strict=True), *zip(OTHERS, FAMILIES, strict=True)])
def test_a_request_or_a_class_that_contradicts_the_model_type(name: str, other: str) -> None:
    family = FAMILIES[name]
    message = _refusal(_config(family.model_type, *family.classes), other)
    assert f"family {other} was requested" in message
    assert f"--family {name}" in message
    if family.marker is not None:
        name = "llada"  # without that entry, the model_type is the dense family's
    if FAMILIES[name].shares_model_type or FAMILIES[name].model_type == FAMILIES[other].model_type:
        return
    for requested in (None, name, other):
        message = _refusal(_config(FAMILIES[name].model_type, *FAMILIES[other].classes), requested)
        assert name in message
        assert other in message


def test_llada_and_its_mixture_of_experts_share_a_model_type() -> None:
    dense, sparse = FAMILIES["llada"], FAMILIES["llada-moe"]
    entries = {"model_type": "llada", "num_experts": 8}
    for values, family in (
        (entries, sparse),
        ({**entries, "num_experts": 0}, dense),
        ({**entries, "num_experts": None}, dense),
        ({**entries, "architectures": list(sparse.classes)}, sparse),
        ({**entries, "architectures": list(dense.classes)}, dense),  # its settings then name num_experts
        ({"model_type": "lladamoe"}, sparse),
    ):
        assert family_of_config(JsonValues(values, "config.json", "look"), None) is family


@pytest.mark.parametrize("model_type", AUTOREGRESSIVE)
def test_an_autoregressive_checkpoint_needs_a_request(model_type: str) -> None:
    config = _config(model_type, f"{model_type.capitalize()}ForCausalLM")
    message = _refusal(config)
    assert f"--family {', '.join(AUTOREGRESSIVE[model_type])}" in message
    assert "autoregressive" in message
    for name, family in FAMILIES.items():
        if name in AUTOREGRESSIVE[model_type]:
            assert family_of_config(config, name) is family
        else:
            assert f"family {name} was requested" in _refusal(config, name)


@pytest.mark.parametrize("model_type", ["gpt2", None, ["Dream"], {"a": 1}, 5, "dream", "LLADA"])
def test_an_unknown_model_type_names_the_families(model_type: Any) -> None:
    message = _refusal(_config(model_type))
    assert f"model_type {model_type!r}" in message
    assert _refusal(_config(model_type, *FAMILIES["dream"].classes), "dream").startswith(message[:20])
    assert ("set its model_type to 'Dream'" in _refusal(_config(model_type), "dream")) == (model_type is None)
    for name, family in FAMILIES.items():
        assert f"{name} ({family.model_names})" in message
    assert "--family" not in message


@pytest.mark.parametrize(
    ("model_type", "words"),
    [("llada2_moe_veomni", "merged experts")],
)
def test_known_but_unsupported_diffusion_models(model_type: str, words: str) -> None:
    for requested in (None, "sdar", "llada"):
        assert model_type in _refusal(_config(model_type), requested)
    assert words in _refusal(_config(model_type))


def test_a_class_that_contradicts_the_request() -> None:
    """Check a checkpoint saved with its own class and the model_type of the network that it was made from."""
    config = _config("qwen2", "Fast_dLLM_QwenForCausalLM")
    assert family_of_config(config, "fast-dllm-v2").name == "fast-dllm-v2"
    for requested in ("dream", "wedlm"):
        assert "--family fast-dllm-v2" in _refusal(config, requested)


def test_an_unknown_family() -> None:
    message = _refusal(_config("Dream"), "gemma")
    assert "'gemma'" in message
    assert ", ".join(FAMILIES) in message


def test_invalid_classes_are_ignored() -> None:
    for classes in (None, "DreamModel", {"a": 1}, [[], 5, None]):
        config = JsonValues({"model_type": "Dream", "architectures": classes}, "config.json", "look")
        assert family_of_config(config, None).name == "dream"
