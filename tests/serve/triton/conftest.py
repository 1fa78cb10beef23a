"""A repository with one model, loaded by a stand-in for Triton; test_tritonserver.py uses the real one."""

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
    """Return a bundle with a chat template in the form that the tiny model was trained on."""
    return with_chat_template(tiny_bundle, tmp_path_factory.mktemp("triton") / "chat", TEMPLATE)


@pytest.fixture(scope="session")
def reference_decoder(triton_bundle: Path) -> Iterator[Decoder]:
    """Yield a decoder that gives the expected answers."""
    with Decoder.open(triton_bundle, threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def write_model() -> Callable[..., Path]:
    """Return a function that writes a model with the command's options and returns its folder."""

    def write(bundle: Path, repository: Path, *options: object) -> Path:
        done = CliRunner().invoke(
            cli, ["triton", str(bundle), "-o", str(repository), *map(str, options)], catch_exceptions=False
        )
        assert done.exit_code == 0
        return Path(done.output.partition(": ")[0])

    return write


@pytest.fixture(scope="session")
def load_model() -> Callable[..., Loaded]:
    """Return a function that loads a model's folder with its own model.py."""

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
    write_model: Callable[..., Path],
    load_model: Callable[..., Loaded],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Loaded]:
    folder = write_model(
        triton_bundle,
        tmp_path_factory.mktemp("repository") / "models",
        *("--model", "tiny", "--threads", 1, "--max-num-seqs", MAX_NUM_SEQS, "--queue", QUEUE),
        *("--max-tokens", 512, "--max-branches", 8, "--max-seconds", 50),
    )
    found = load_model(folder)
    yield found
    found.model.finalize()
