"""The figures are those of the checkout that is named, whatever checkout they are taken from."""

import subprocess
import sys
from pathlib import Path

FIGURES = Path(__file__).resolve().parents[3] / "tools" / "house" / "figures.py"
PACKAGES = ("runtime", "plugins", "tiny", "export", "bench", "serve", "cli")


def test_figures_of_another_checkout(tmp_path: Path) -> None:
    (tmp_path / "src" / "lopa").mkdir(parents=True)
    for name in (*PACKAGES, "tools", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('"""A face."""\n')
        if name in PACKAGES:
            (tmp_path / "src" / "lopa" / name).symlink_to(tmp_path / name)
    room = tmp_path / "runtime" / "room"
    room.mkdir()
    for name in ("__init__", "first", "second"):
        (room / f"{name}.py").write_text("from lopa.runtime import alone\n" if name == "first" else "")
    (tmp_path / "runtime" / "alone.py").write_text("A = 1\n")
    (tmp_path / "export" / "made.py").write_text("import lopa.runtime.room.first\nimport lopa.runtime.room.second\n")
    done = subprocess.run([sys.executable, FIGURES, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"product: 13 files, 12 lines; fullest folders {room.relative_to(tmp_path)} 2, runtime 1, export 1",
        "tests: 1 files, 1 lines; fullest folders ",
        "imports between packages: export > runtime 2",
        "runtime: 2 rooms, 1 imports between 1 pairs of them",
        "plugins: 0 rooms, 0 imports between 0 pairs of them",
        "tiny: 0 rooms, 0 imports between 0 pairs of them",
        "export: 1 rooms, 0 imports between 0 pairs of them",
        "bench: 0 rooms, 0 imports between 0 pairs of them",
        "serve: 0 rooms, 0 imports between 0 pairs of them",
        "cli: 0 rooms, 0 imports between 0 pairs of them",
        "tools: 0 rooms, 0 imports between 0 pairs of them",
    ]
