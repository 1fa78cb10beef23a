"""Device names, their parser, the families' records, and an artificial family that needs only a record."""

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.command import PROMPT

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.device_families import FAMILIES, find_device, full_device_name, is_on_processor, parse_device
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig, branch_choice, merged_options
from lopa.runtime.sessions.cpu_cores import check_devices
from lopa.runtime.sessions.session import forward_from_bundle, open_session

OPTIONS = merged_options(GenerationConfig())
TOY_SESSION = """
from lopa.runtime.sessions import numpy_session

def open_session(bundle, device, *, threads):
    return numpy_session.open_session(bundle, device, threads=threads)
"""


@pytest.mark.parametrize(
    ("text", "family", "rest", "is_processor"),
    [
        ("cpu", "cpu", "", True),
        ("cpu:0-3", "cpu", "0-3", True),
        ("numpy", "numpy", "", True),
        ("openvino:CPU:bf16", "openvino", "CPU:bf16", True),
        ("openvino:NPU:auto", "openvino", "NPU:auto", False),
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
    family = FAMILIES.get(text.partition(":")[0])
    assert caught.value.expected.startswith(family.syntax if family else "one of " + ", ".join(FAMILIES))


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


def test_the_page_of_devices_has_each_family() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "devices.md").read_text(encoding="utf-8")
    rows = {}
    for names, device, caches, branches in re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE):
        first, *others = re.findall(r"`([^` ]+)`", names)
        rows[first.partition(":")[0]] = (first, others, device, caches, branches)
    assert list(rows) == list(FAMILIES)
    for name, (first, others, device, caches, branches) in rows.items():
        family = FAMILIES[name]
        assert all(parse_device(each.replace("N", "0") if name != "openvino" else each) for each in (first, *others))
        assert device.startswith(family.description), name
        assert caches == family.caches
        default = branch_choice(OPTIONS, [family.examples[0]]).number
        assert branches.startswith(str(default)), name


@pytest.fixture
def toy_modules(tmp_path: Path) -> Path:
    (tmp_path / "toy_session.py").write_text(TOY_SESSION)
    return tmp_path


@pytest.fixture
def toy(toy_modules: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(toy_modules)
    made_up = replace(FAMILIES["numpy"], name="toy", syntax="toy", examples=("toy",), session_module="toy_session")
    monkeypatch.setitem(FAMILIES, "toy", made_up)
    yield
    sys.modules.pop("toy_session", None)


@pytest.mark.usefixtures("toy")
def test_an_artificial_family_decodes(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for device in ("numpy", "toy"):
        with Decoder.open(tiny_bundle, [device]) as decoder:
            assert decoder.session.device == device
            (result,) = decoder.generate([PROMPT], decoder.config(max_new_tokens=16))
            assert decoder.resolve(decoder.config()).branches.number == 1
            results.append(result.token_ids)
    assert results[0] == results[1]
    monkeypatch.setitem(FAMILIES, "toy", replace(FAMILIES["toy"], processor_suffix=None))
    assert branch_choice(OPTIONS, ["toy"]).number == 4
