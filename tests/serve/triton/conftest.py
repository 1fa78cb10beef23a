"""A repository with one model, loaded by a stand-in for Triton (and, in test_tritonserver.py, by the real one)."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.chat_bundles import with_chat_template
from tests.serve.triton.stand_in import Loaded, backend

from lopa.cli.commands import cli
from lopa.runtime import Decoder

TEMPLATE = "{{ bos_token }}Question: {% for m in messages %}{{ m.content }}{% endfor %}{{ '\\nAnswer:' }}"
MAX_NUM_SEQS, QUEUE = 2, 30


@pytest.fixture(scope="session")
def triton_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a chat template that makes what the tiny model was taught."""
    return with_chat_template(tiny_bundle, tmp_path_factory.mktemp("triton") / "chat", TEMPLATE)


@pytest.fixture(scope="session")
def alone(triton_bundle: Path) -> Iterator[Decoder]:
    """What answers have to be."""
    with Decoder.open(triton_bundle, threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def written() -> Callable[..., Path]:
    """The folder of a model, written by the command with these options."""

    def write(bundle: Path, repository: Path, *options: object) -> Path:
        said = CliRunner().invoke(
            cli, ["triton", str(bundle), "-o", str(repository), *map(str, options)], catch_exceptions=False
        )
        assert said.exit_code == 0
        return Path(said.output.partition(": ")[0])

    return write


@pytest.fixture(scope="session")
def loaded() -> Callable[..., Loaded]:
    """A model of a repository's folder, by its own model.py."""

    def load(folder: Path, log: list[str] | None = None, **instance: Any) -> Loaded:
        place = folder / "1" / "model.py"
        found = importlib.util.spec_from_file_location("model", place)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        sys.modules["triton_python_backend_utils"] = backend(log)  # type: ignore[assignment]
        try:
            return Loaded(module.TritonPythonModel(), folder, **instance)
        finally:
            del sys.modules["triton_python_backend_utils"]

    return load


@pytest.fixture(scope="session")
def model(
    triton_bundle: Path,
    written: Callable[..., Path],
    loaded: Callable[..., Loaded],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Loaded]:
    folder = written(
        triton_bundle,
        tmp_path_factory.mktemp("repository") / "models",
        *("--model", "tiny", "--threads", 1, "--max-num-seqs", MAX_NUM_SEQS, "--queue", QUEUE),
        *("--max-tokens", 512, "--max-branches", 8, "--max-seconds", 50),
    )
    found = loaded(folder)
    yield found
    found.model.finalize()
