"""lopa-export inspect of a mixture of experts, split into two stages."""

from pathlib import Path

from tests.cli.command import lopa_export

RECORDED = Path(__file__).parents[2] / "reference" / "moe"


def test_experts_and_stages_are_shown(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    made = lopa_export("onnx", str(RECORDED / "llada2"), "-o", str(bundle), "--stages", "2")
    assert made.returncode == 0, made.stderr
    shown = lopa_export("inspect", str(bundle))
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    experts = next(line for line in lines if line.startswith("experts"))
    assert experts.split(maxsplit=1)[1] == (
        "16 of 32, 4 per token, shared expert of 32, router sigmoid in 2 of 4 groups, dense layers 0"
    )
    touched = lines[lines.index(experts) + 1]  # of 16 experts a row uses 4
    assert touched.strip() == (
        "read by 1 row 25%, a block of 32 100%, 4 branches of 32 100% (if rows choose independently)"
    )
    assert len([line for line in lines if line.startswith("stage ")]) == 2
