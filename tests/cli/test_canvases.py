"""Commands without a form of contract version 2 refuse a bundle with canvases by name, and write nothing."""

from pathlib import Path

import pytest
from tests.cli.command import lopa_export
from tests.web.installed import WEB, no_web, run_node


@pytest.mark.parametrize(
    "command",
    [
        "plan BUNDLE", "tensorrt BUNDLE", "tensorrt BUNDLE --rtx --compute-capability 8.9", "qnn BUNDLE --soc SM8650",
        "ascend BUNDLE --soc-version Ascend910B1 --dry-run -o OUT", "page BUNDLE -o OUT",
        "triton BUNDLE -o OUT --device tensorrt:0", "triton BUNDLE -o OUT --device cpu:0,cpu:1",
        "generate BUNDLE hi --device mpi", "generate BUNDLE hi --device cpu+cpu", "generate BUNDLE hi --device cpu:0",
        "generate BUNDLE hi --device qnn", "generate BUNDLE hi --device ascend:0",
        "generate BUNDLE hi --device cpu:0 --device cpu:1", "verify BUNDLE --device tensorrt-rtx:0",
    ],
)  # fmt: skip
def test_a_bundle_with_canvases_is_refused(canvas_bundle: Path, tmp_path: Path, command: str) -> None:
    before = sorted(canvas_bundle.rglob("*"))
    places = {"BUNDLE": str(canvas_bundle), "OUT": str(tmp_path / "out")}
    done = lopa_export(*(places.get(word, word) for word in command.split()))
    if command.startswith("tensorrt") and done.returncode == 3:
        pytest.skip(done.stderr)  # the library is missing
    assert (done.returncode, "with canvases (contract version 2)" in done.stderr) == (2, True), done.stderr
    assert [sorted(canvas_bundle.rglob("*")), [*tmp_path.iterdir()]] == [before, []]


def test_triton_takes_a_device_with_canvases(canvas_bundle: Path, tmp_path: Path) -> None:
    done = lopa_export("triton", canvas_bundle, "-o", tmp_path, "--device", "cpu", "--link")
    assert done.returncode == 0, done.stderr


@no_web
@pytest.mark.web
def test_lopa_web_refuses_the_contract(canvas_bundle: Path) -> None:
    program = f"""import {{ Decoder }} from {str(WEB / "dist" / "index.js")!r}
await Decoder.open({str(canvas_bundle)!r}).catch((error) => console.log(error.message))"""
    assert "has contract version 2" in run_node("--input-type=module", "--eval", program).stdout
