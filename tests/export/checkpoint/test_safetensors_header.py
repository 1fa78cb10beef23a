import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from lopa.export.checkpoint.safetensors_header import headers_from_file
from lopa.runtime.errors import BadInputError

TENSORS = {
    "matrix": torch.randn(3, 5, generator=torch.Generator().manual_seed(1)),
    "half": torch.randn(7, generator=torch.Generator().manual_seed(2)).half(),
    "brain": torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(3)).bfloat16(),
    "double": torch.randn(4, generator=torch.Generator().manual_seed(4)).double(),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
}
Header = dict[str, Any]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    return path


def _edit(path: Path, change: Callable[[Header], object]) -> None:
    """Change the header's object and keep the values."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header: Header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def test_tensors_are_at_the_offsets_of_the_header(file: Path) -> None:
    content = file.read_bytes()
    headers = headers_from_file(file)
    assert set(headers) == set(TENSORS)
    for name, tensor in TENSORS.items():
        header = headers[name]
        assert header.shape == tuple(tensor.shape)
        values = content[header.offset : header.offset + header.length]
        assert values == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header["matrix"].update(shape=[3, 6]), "gives matrix, F32 \\[3, 6\\], the bytes"),
        (lambda header: header["matrix"].update(rows=3), "describes matrix as"),
        (lambda header: header["matrix"].pop("dtype"), "describes matrix as"),
        (lambda header: header.update(matrix=[3, 5]), "describes matrix as"),
        (lambda header: header.pop("matrix"), "begin at byte"),
        (lambda header: header.update(again=header["half"]), "begin at byte"),
    ],
)
def test_a_header_that_contradicts_itself(file: Path, change: Callable[[Header], object], message: str) -> None:
    _edit(file, change)
    with pytest.raises(BadInputError, match=message):
        headers_from_file(file)


SHAPES = [[-3, -5], [3, True, 5], 15, [[1]], [1.5], {"a": 1}, [2**63] * 100_000, [1] * 100_000]
OFFSETS = [[0], [-4, 0], [0, 10**40], "ab", [[], {}]]


@pytest.mark.parametrize(
    "change",
    [*({"shape": shape} for shape in SHAPES), *({"data_offsets": offsets} for offsets in OFFSETS)],
    ids=lambda change: str(change)[:30],
)
def test_entries_of_other_types(file: Path, change: Header) -> None:
    _edit(file, lambda header: header["matrix"].update(change))
    with pytest.raises(BadInputError, match="gives matrix the shape"):
        headers_from_file(file)


@pytest.mark.parametrize("dtype", [["F32"], {"a": 1}, "I8", "F8_E4M3", "unknown", None])
def test_a_type_that_weights_do_not_have(file: Path, dtype: object) -> None:
    _edit(file, lambda header: header["matrix"].update(dtype=dtype))
    with pytest.raises(BadInputError, match=re.escape(f"matrix has the type {dtype!r}")) as raised:
        headers_from_file(file)
    assert "not quantized" in raised.value.remedy


@pytest.mark.parametrize("header", [b"[]", b"3", b"{", b"\xff\xfe", b'{"a": 1, "a": 2}', b""])
def test_a_header_of_another_kind(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(BadInputError, match="is not a safetensors file: its header is not"):
        headers_from_file(path)


@pytest.mark.parametrize("length", [1 << 63, (1 << 24) + 1, 4000])
def test_a_header_longer_than_the_file(file: Path, length: int) -> None:
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    with pytest.raises(BadInputError, match=f"a header of {length}"):
        headers_from_file(file)


def test_extra_values(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"\0")
    with pytest.raises(BadInputError, match="bytes, but its header describes"):
        headers_from_file(file)


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_path_that_is_not_a_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    if kind == "folder":
        path.mkdir()
    with pytest.raises(BadInputError, match="does not exist" if kind == "missing" else "not a regular file"):
        headers_from_file(path)


def _names(path: Path) -> list[str] | None:
    """Return the names of the tensors, or None for a rejected file."""
    try:
        return sorted(headers_from_file(path))
    except BadInputError:
        return None


def _library_s_names(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as opened:
        names: list[str] = opened.keys()
        return names


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_files_that_the_library_rejects_are_rejected(tmp_path: Path, data: st.DataObject) -> None:
    """Check files with a few changed header bytes, and truncated files."""
    path = tmp_path / "altered.safetensors"
    save_file({name: tensor for name, tensor in TENSORS.items() if name in ("half", "brain")}, path)
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, 7 + length))] = data.draw(st.sampled_from(b'0123456789{}[],:"abF\x00'))
    path.write_bytes(content[: len(content) - data.draw(st.sampled_from([0, 0, 0, 1, 4]))])
    names = _names(path)
    if names is not None:
        assert names == sorted(_library_s_names(path))
