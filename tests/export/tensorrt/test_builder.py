"""Writing of plans to disk, and checks before a build of minutes."""

import hashlib
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.tensorrt.buckets import BUCKETS, target
from tests.runtime.tensorrt.stand_in_tensorrt import stand_in_tensorrt

import lopa.export.tensorrt.builder as builder
from lopa.export.progress import silent
from lopa.export.tensorrt.builder import BuildRequest, check_named_dimensions, plan_from_request
from lopa.export.tensorrt.engine import job_from_bundle
from lopa.runtime.accelerator.device_forward import GraphArrays
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.profiles import profiles_of_buckets
from lopa.runtime.tensorrt.tensorrt_manifest import BuildFlags

TRT = stand_in_tensorrt(11)


@pytest.fixture
def request_of_tiny(tiny_bundle: Path) -> BuildRequest:
    job = job_from_bundle(Bundle.open(tiny_bundle), BUCKETS[:1], BuildFlags())
    return BuildRequest(
        model=job.model,
        graph_path=job.bundle.graph,
        manifest=job.bundle.manifest,
        profiles=profiles_of_buckets(job.buckets, job.prefill),
        flags=job.flags,
        target=target(TRT),
        timing_cache=None,
    )


def test_a_plan_is_written_piece_by_piece(
    request_of_tiny: BuildRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [np.random.default_rng(seed).bytes(size) for seed, size in enumerate((300, 1, 100_000))]
    monkeypatch.setattr(builder, "_build", _writes(*pieces))
    built = plan_from_request(TRT, request_of_tiny, tmp_path / "a.plan", silent)
    data = b"".join(pieces)
    assert (tmp_path / "a.plan").read_bytes() == data
    assert (built.plan.path, built.plan.size) == ("a.plan", len(data))
    assert built.plan.sha256 == hashlib.sha256(data).hexdigest()
    assert built.timing_cache is None


def test_a_plan_on_a_full_disk(request_of_tiny: BuildRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the error. TensorRT itself would only report that the build failed."""
    monkeypatch.setattr(builder, "_build", _writes(bytes(100_000)))
    with pytest.raises(OSError, match="No space left"):
        plan_from_request(TRT, request_of_tiny, Path("/dev/full"), silent)


def _writes(*pieces: bytes) -> Callable[..., bool]:
    """Return a build that writes the plan in these pieces, and fails when one is not written."""
    return lambda _builder, _network, _config, writer, _monitor: all(writer.write(each) == len(each) for each in pieces)


# 200 blocks of 1 MB below a larger one that stays, after a freed block had raised glibc's threshold.
FREED = """
import ctypes, re, sys
from lopa.export.tensorrt.builder import return_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
if sys.argv[1] == "back":
    return_freed_memory()
libc.free(libc.malloc(20_000_000))
blocks = [libc.malloc(1_000_000) for _ in range(200)]
for block in blocks:
    libc.memset(block, 1, 1_000_000)
stays = libc.malloc(2_000_000)
for block in blocks:
    libc.free(block)
print(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc only")
def test_freed_memory_is_returned() -> None:
    kept, back = (
        int(
            subprocess.run(
                [sys.executable, "-c", FREED, how], check=True, capture_output=True, text=True, timeout=300
            ).stdout
        )
        for how in ("keep", "back")
    )
    assert kept - back > 150_000  # in units of 1024 bytes


def test_a_profile_that_contradicts_itself_is_not_built(
    request_of_tiny: BuildRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = GraphArrays.input_shapes
    wrong = {"position_ids": (1, 1, 33)}
    monkeypatch.setattr(GraphArrays, "input_shapes", lambda arrays, sizes: right(arrays, sizes) | wrong)
    monkeypatch.setattr(builder, "_build", lambda *_: pytest.fail("it was built"))
    with pytest.raises(BadInputError, match=r"profile 0 gives \w+ the size"):
        plan_from_request(TRT, request_of_tiny, tmp_path / "a.plan", silent)


NAMES = {"ids": ["R", "B", "W"], "mask": ["R", "B", "W", "W"], "other": ["", "R"]}


def test_axes_of_one_name_have_one_size() -> None:
    check_named_dimensions(NAMES, {"ids": (2, 3, 4), "mask": (2, 3, 4, 4), "other": (9, 2)}, 0)
    for shapes, message in (
        ({"mask": (2, 3, 4, 5)}, "profile 7 gives W the size 4 in mask, axis 2 and 5 in mask, axis 3"),
        ({"ids": (2, 3, 4), "other": (9, 1)}, "profile 7 gives R the size 2 in ids, axis 0 and 1 in other, axis 1"),
    ):
        with pytest.raises(BadInputError, match=message):
            check_named_dimensions(NAMES, shapes, 7)
