"""Device names, their parser, the families' records, and an artificial family that needs only a record."""

import importlib
import re
from pathlib import Path

import pytest

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.device_families import FAMILIES, find_device, full_device_name, is_on_processor, parse_device
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig, branch_choice, merged_options
from lopa.runtime.sessions.cpu_cores import check_devices
from lopa.runtime.sessions.session import forward_from_bundle, open_session

OPTIONS = merged_options(GenerationConfig())


@pytest.mark.parametrize(
    ("text", "family", "rest", "is_processor"),
    [
        ("cpu", "cpu", "", True),
        ("cpu:0-3", "cpu", "0-3", True),
        ("numpy", "numpy", "", True),
        ("openvino:CPU:bf16", "openvino", "CPU:bf16", True),
        ("openvino:NPU:bf16", "openvino", "NPU:bf16", False),
        ("cuda:1:tf32", "cuda", "1:tf32", False),
        ("tensorrt-rtx:3", "tensorrt-rtx", "3", False),
        ("mpi", "mpi", "", False),
        ("mpi:cuda", "mpi", "cuda", False),
    ],
)
def test_parsed_names(text: str, family: str, rest: str, is_processor: bool) -> None:
    found = parse_device(text)
    assert (found.family.name, found.rest, found.is_processor) == (family, rest, is_processor)
    assert parse_device(text, "cpu", family) == found
    assert branch_choice(OPTIONS, [text]).number == (1 if is_processor else 4)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "tpu", "Cpu", "cpu:", "cpu0", "cpu:0-", "cuda:", "cuda:x", "cuda:-1", "cuda:1.0", "cuda:٣"),
        *("cuda:12345", "cuda:tf16", "cuda:0:", "cuda:0:bf16", "tensorrt:0:tf32", "ascend:0-1", "ascend:-1"),
        *("cuda:0\n", "cuda:0+cuda:1", "numpy:", "numpy:0", "mpi:tpu", "openvino", "openvino:", "openvino:cpu"),
        *("openvino:GPU.", "openvino:GPU.x", "openvino:CPU.1", "openvino:AUTO", "openvino:CPU:fp8"),
    ],
)
def test_invalid_names(text: str) -> None:
    assert find_device(text) is None
    assert not is_on_processor(text)
    with pytest.raises(BadInputError, match=re.escape(f"device {text!r}")) as caught:
        parse_device(text)
    family = FAMILIES.get(text.partition(":")[0].lower())
    assert caught.value.expected.startswith(family.syntax if family else "one of " + ", ".join(FAMILIES))


def test_names_of_other_programs_lead_to_ours() -> None:
    for text, message in (("gpu:0", "or webgpu:N"), ("CUDA:0", "such as cuda:0"), ("cuda,cpu", "repeat --device")):
        with pytest.raises(BadInputError, match=message):
            parse_device(text)


@pytest.mark.parametrize("family", [*FAMILIES])
def test_no_session_opens_an_invalid_name(family: str, tiny_bundle: Path) -> None:
    """The name is checked before the family's library is imported."""
    with pytest.raises(BadInputError, match=f"unknown device '{family}:.x'") as caught:
        open_session(Bundle.open(tiny_bundle), f"{family}:.x")
    assert caught.value.expected.startswith(FAMILIES[family].syntax)


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.has_numbers])
def test_a_name_without_a_number_means_the_first_device(family: str) -> None:
    assert parse_device(family) == parse_device(f"{family}:0")
    assert parse_device(family).number == 0
    assert full_device_name(f"{family}+{family}:1") == f"{family}:0+{family}:1"
    with pytest.raises(BadInputError, match=f"devices '{family}' and '{family}:0' are the same"):
        check_devices([family, f"{family}:0"])
    check_devices([family, f"{family}:1"])


def test_a_name_with_a_suffix_and_without_a_number() -> None:
    assert full_device_name("cuda:tf32") == "cuda:0:tf32"
    assert full_device_name("cpu:0-3") == "cpu:0-3"


def test_records_name_existing_modules() -> None:
    for name, family in FAMILIES.items():
        assert name == family.name
        assert all(parse_device(text).family is family for text in (*family.examples, *family.timed))
        if family.label.endswith(":N"):
            assert parse_device(family.examples[0]).number == 0
        modules = [(family.session_module, "open_session"), (family.stage_module, "forward_from_bundle")]
        for module, function in [*modules, (family.status_module, "find_devices")]:
            assert module is None or callable(getattr(importlib.import_module(module), function))


def test_a_device_without_stages_is_rejected_as_a_stage(tiny_staged: Path) -> None:
    bundle = Bundle.open(tiny_staged)
    part = whole_model(bundle.manifest.dimensions.layers)
    with pytest.raises(BadInputError, match="device 'numpy' cannot be a stage") as caught:
        forward_from_bundle(bundle, part, "numpy", threads=None)
    assert "cpu, openvino, cuda" in caught.value.expected
