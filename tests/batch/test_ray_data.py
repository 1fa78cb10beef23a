"""Real Ray, real actors with engines: the answers of `generate --prompts`, once each, whatever happens to an actor.

`make test-ray`, alone on its machine.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime.errors import BadInputError

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
BUNDLE = "LOPA_RAY_BUNDLE"
ROWS = 48
ROOT = Path(__file__).resolve().parents[2]
INTERRUPTED = """
import sys, threading, os, time
from pathlib import Path
from tests.batch.test_ray_data import start_ray
from lopa.batch.ray_data import answer_files
start_ray()
target = Path(sys.argv[2])

def kill():
    while len(list(target.rglob("*.parquet"))) < 2:
        time.sleep(0.02)
    os._exit(9)

threading.Thread(target=kill, daemon=True).start()
answer_files(*sys.argv[1:4], checkpoint=sys.argv[4], actors=2, batch_size=4, max_new_tokens=64)
"""


def start_ray() -> None:
    import ray

    os.environ.update(RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")
    os.environ.setdefault("RAY_AUTH_TOKEN", "of-the-tests")
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=100_000_000,
        _temp_dir=tempfile.mkdtemp(prefix="ray"),  # a short path: sockets lie in it
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
    )


@pytest.fixture(scope="module")
def bundle() -> Path:
    pytest.importorskip("ray.data", reason="Ray Data is not installed; run `make test-ray`", exc_type=ImportError)
    if BUNDLE not in os.environ:
        pytest.skip(f"{BUNDLE} names no bundle; run `make test-ray`")
    return Path(os.environ[BUNDLE]).resolve()


@pytest.fixture(scope="module")
def ray_cluster(bundle: Path) -> Iterator[None]:
    import ray

    start_ray()
    yield
    ray.shutdown()


def lines() -> list[dict[str, Any]]:
    text = "Question: There are {} baskets, and each holds {} candies. How many candies are there?\nAnswer:"
    return [{"id": f"q{n:03}", "prompt": text.format(n + 2, n % 7 + 2), "source": "made"} for n in range(ROWS)]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def expected(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the texts of `generate --prompts`, in order."""
    folder = tmp_path_factory.mktemp("expected")
    source = write_lines(folder / "in.jsonl", [{"prompt": row["prompt"], "id": row["id"]} for row in lines()])
    options = ("--output", folder / "out.jsonl", "--max-new-tokens", "64", "--threads", "1", "--quiet")
    command = [sys.executable, "-m", "lopa.cli.main", "generate", bundle, "--prompts", source, *options]
    subprocess.run(list(map(str, command)), check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    return [json.loads(line)["text"] for line in (folder / "out.jsonl").read_text().splitlines()]


def table_of(folder: Path) -> Any:
    import pyarrow.dataset

    return pyarrow.dataset.dataset(str(folder)).to_table()


def wait_for_processes(variable: str) -> None:
    """Wait until no process has this variable. A killed run's workers write for seconds, also files that a run which
    continues has removed.
    """
    end = time.monotonic() + 120
    while any(variable.encode() in content for content in environments()):
        assert time.monotonic() < end, "the workers of the interrupted run do not end"
        time.sleep(0.1)


def environments() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            yield path.read_bytes()


def whole_files(folder: Path) -> list[Path]:
    """Return the files in `folder` that were written to their end."""
    return [
        path
        for path in sorted(folder.rglob("*.parquet"))
        if path.read_bytes()[-4:] == b"PAR1" and path.stat().st_size > 8
    ]


@pytest.mark.parametrize("actors", [2, 3])
def test_actors_give_the_answers_of_generate_in_order(
    ray_cluster: None, bundle: Path, tmp_path: Path, expected: list[str], actors: int
) -> None:
    from lopa.batch.ray_data import answer_files

    source = write_lines(tmp_path / "in.jsonl", lines())
    answer_files(source, tmp_path / "out", bundle, actors=actors, batch_size=4, max_new_tokens=64)
    found = table_of(tmp_path / "out")
    assert found["text"].to_pylist() == expected
    assert found["id"].to_pylist() == [row["id"] for row in lines()]
    assert set(found["source"].to_pylist()) == {"made"}
    assert set(found["error"].to_pylist()) == {""}


def test_a_killed_actor_changes_no_answer(ray_cluster: None, bundle: Path, tmp_path: Path, expected: list[str]) -> None:
    from lopa.batch.ray_data import answer_files

    source, killed = write_lines(tmp_path / "in.jsonl", lines()), list[int]()

    def kill_one() -> None:
        while not killed:
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    name = (process / "cmdline").read_bytes()
                except OSError:
                    continue
                if name.startswith(b"ray::") and b"RowAnswerer" in name:
                    time.sleep(0.3)  # its engine is open, and it decodes
                    os.kill(int(process.name), signal.SIGKILL)
                    killed.append(int(process.name))
                    return
            time.sleep(0.01)

    other = threading.Thread(target=kill_one)
    other.start()
    answer_files(source, tmp_path / "out", bundle, actors=2, batch_size=4, max_new_tokens=64)
    other.join()
    assert killed
    found = table_of(tmp_path / "out")
    assert dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True)) == dict(
        zip([row["id"] for row in lines()], expected, strict=True)
    )
    assert found.num_rows == ROWS


def test_an_interrupted_run_continues_after_the_written_rows(
    bundle: Path, tmp_path: Path, expected: list[str], ray_cluster: None
) -> None:
    from lopa.batch.ray_data import answer_files

    folder = tmp_path / "many"
    folder.mkdir()
    for part in range(6):  # a block for each file
        write_lines(folder / f"{part}.jsonl", lines()[part * 8 : part * 8 + 8])
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "LOPA_INTERRUPTED_RUN": str(tmp_path)}
    command = [sys.executable, "-c", INTERRUPTED, *map(str, (folder, out, bundle, checkpoint))]
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 9
    wait_for_processes(f"LOPA_INTERRUPTED_RUN={tmp_path}")
    before = {path: path.stat().st_mtime_ns for path in whole_files(out)}
    assert 0 < len(before) < 6
    assert list(checkpoint.rglob("*.parquet"))
    answer_files(folder, out, bundle, checkpoint=checkpoint, actors=2, batch_size=4, max_new_tokens=64)
    found = table_of(out)
    assert Counter(found["id"].to_pylist()) == Counter(row["id"] for row in lines())
    texts = dict(zip([row["id"] for row in lines()], expected, strict=True))
    assert dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True)) == texts
    assert not list(checkpoint.rglob("*.parquet"))
    assert any(path.exists() and path.stat().st_mtime_ns == stamp for path, stamp in before.items())


def test_a_bad_row_has_an_error_and_parquet_is_read(
    ray_cluster: None, bundle: Path, tmp_path: Path, expected: list[str]
) -> None:
    import pyarrow
    import pyarrow.parquet

    from lopa.batch.ray_data import answer_files

    rows: list[dict[str, Any]] = [
        {"id": row["id"], "prompt": row["prompt"], "lopa": {"strategy": None}} for row in lines()[:6]
    ]
    rows[3] |= {"prompt": ""}
    rows[4] |= {"lopa": {"strategy": "none such"}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    answer_files(tmp_path / "in.parquet", tmp_path / "out", bundle, batch_size=3, max_new_tokens=64)
    found = table_of(tmp_path / "out").to_pylist()
    assert [bool(row["error"]) for row in found] == [False, False, False, True, True, False]
    assert "none such" in found[4]["error"]
    assert [row["text"] for row in found if not row["error"]] == [expected[n] for n in (0, 1, 2, 5)]


def test_what_cannot_run_is_refused_before_an_actor_starts(ray_cluster: None, bundle: Path, tmp_path: Path) -> None:
    from lopa.batch.ray_data import answer_files

    source = write_lines(tmp_path / "in.jsonl", lines())
    other = write_lines(tmp_path / "named.jsonl", [{"prompt": "a", "text": "b"}])
    for path, arguments, message in (
        (source, {"actors": 7}, "a cluster of 8 CPUs\n  expected: at least 9"),
        (source, {"actors": 0}, "actors"),
        (source, {"strategy": "none such"}, "none such"),
        (source, {"checkpoint": tmp_path / "c", "id_column": "number"}, "no column 'number'"),
        (other, {}, "has a column 'text'"),
        (tmp_path / "in.csv", {}, "files ending in '.csv'"),
    ):
        with pytest.raises(BadInputError, match=message):
            answer_files(path, tmp_path / "out", bundle, **arguments)
    with pytest.raises(BadInputError, match="missing"):
        answer_files(source, tmp_path / "out", tmp_path / "missing")
    assert not (tmp_path / "out").exists()
