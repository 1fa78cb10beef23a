"""A bundle whose folder or link is replaced while it is opened, or after that."""

import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.bundle.test_costs import costs_of

from lopa.runtime import decoder as decoder_module
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError, CheckFailedError, EngineFailedError, GrammarHelperError
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.grammar.helper import is_helper_supported

PROMPT = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"
STEPS = ("check_signature", "Bundle.from_folder", "edit_bundle", "Tokenizer.open", "session_from_devices")
"""Functions that Decoder.open calls, in order. Something else happens after each."""


@pytest.fixture(scope="module")
def other_bundle(export_tiny: Callable[..., Path]) -> Path:
    """Bundle with the same file names and sizes as tiny_bundle, but other weights."""
    return export_tiny(with_logits=False, lora=None)


def text_of(bundle: Path, **options: Any) -> str:
    with Decoder.open(bundle, threads=1, defaults={}, **options) as decoder:
        return decoder.generate(PROMPT, max_new_tokens=48).text


def happen_after(step: str, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `action` as soon as Decoder.open has called `step`."""
    *owner, name = step.split(".")
    place = getattr(decoder_module, owner[0]) if owner else decoder_module
    own = getattr(place, name)

    def followed(*arguments: Any, **options: Any) -> Any:
        result = own(*arguments, **options)
        action()
        return result

    monkeypatch.setattr(place, name, followed)


def relink(link: Path, target: Path) -> None:
    fresh = link.with_name("fresh")
    fresh.symlink_to(target, target_is_directory=True)
    fresh.replace(link)


def replace_folder(folder: Path, other: Path) -> None:
    folder.rename(folder.with_name("replaced"))
    shutil.copytree(other, folder)


@pytest.mark.parametrize("step", STEPS[1:-1:2])
def test_folder_that_is_replaced_during_opening(
    tiny_bundle: Path, other_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    happen_after(step, lambda: replace_folder(folder, other_bundle), monkeypatch)
    with pytest.raises(BadInputError, match="changed while it was opened"):
        Decoder.open(folder, threads=1, defaults={})


def sign(folder: Path, tmp_path: Path) -> Path:
    """Sign a bundle, and return the public key."""
    pytest.importorskip("cryptography")
    from tests.runtime.signature.certificates import write_keys

    from lopa.runtime.signature import sign_folder, signer_from_files

    private, public = write_keys(tmp_path, "signer")
    sign_folder(folder, signer_from_files(private, None))
    return public


@pytest.fixture
def signed(tiny_bundle: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return a signed copy of tiny_bundle, and the public key."""
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "signed"))
    return folder, sign(folder, tmp_path)


@pytest.mark.parametrize("step", STEPS[:-1])
def test_unsigned_bundle_never_takes_the_place_of_a_signed_one(
    signed: tuple[Path, Path], other_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder, public = signed
    expected = text_of(folder, trusted_keys=[public])
    (tmp_path / "current").symlink_to(folder, target_is_directory=True)
    with monkeypatch.context() as patched:
        happen_after(step, lambda: relink(tmp_path / "current", other_bundle), patched)
        assert text_of(tmp_path / "current", trusted_keys=[public]) == expected
    with pytest.raises(CheckFailedError, match="is not signed"):
        text_of(tmp_path / "current", trusted_keys=[public])
    happen_after(step, lambda: replace_folder(folder, other_bundle), monkeypatch)
    with pytest.raises(BadInputError, match="changed while it was opened"):
        Decoder.open(folder, threads=1, defaults={}, trusted_keys=[public])


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system has no paths of open folders")
@pytest.mark.parametrize("step", STEPS[:1])
def test_folder_above_a_signed_one_that_is_replaced_and_put_back(
    signed: tuple[Path, Path], other_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder, public = signed
    for name, source in (("a", folder), ("b", other_bundle)):
        (tmp_path / name).mkdir()
        shutil.copytree(source, tmp_path / name / "bundle")

    def exchange() -> None:
        for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
            (tmp_path / old).rename(tmp_path / new)

    expected = text_of(tmp_path / "a" / "bundle", trusted_keys=[public])
    happen_after(step, exchange, monkeypatch)
    happen_after("session_from_devices", exchange, monkeypatch)
    with Decoder.open(tmp_path / "a" / "bundle", threads=1, trusted_keys=[public]) as decoder:
        assert decoder.bundle.path == tmp_path / "a" / "bundle"
        assert decoder.generate(PROMPT, max_new_tokens=48).text == expected
        with pytest.raises(BadInputError, match="the bundle has no chat template"):
            decoder.tokenizer.chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("is_signed", [False, True], ids=["added", "changed"])
def test_cost_table_that_the_signature_does_not_cover(
    tiny_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_signed: bool
) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (folder / "costs.cpu.json").unlink(missing_ok=True)
    costs = json_from_record(costs_of(Bundle.open(folder)))
    if is_signed:
        (folder / "costs.cpu.json").write_bytes(costs)
    public = sign(folder, tmp_path)
    with Decoder.open(folder, threads=1, defaults={}, trusted_keys=[public]) as decoder:
        (folder / "costs.cpu.json").write_bytes(costs + b" ")
        for _ in range(2):  # the refusal is not forgotten
            with pytest.raises(BadInputError, match="is not the file that was signed"):
                decoder.generate(PROMPT, max_new_tokens=8, branches="auto")
        assert not decoder.has_costs
        assert "is not the file that was signed" in caplog.text
        unsigned = decoder.generate(PROMPT, max_new_tokens=48, branches=4).text
    with Decoder.open(folder, threads=1, defaults={}) as decoder:
        assert decoder.has_costs
        assert decoder.generate(PROMPT, max_new_tokens=48, branches=4).text == unsigned
    if is_signed:
        (folder / "costs.cpu.json").write_bytes(costs)
        with Decoder.open(folder, threads=1, defaults={}, trusted_keys=[public]) as decoder:
            assert decoder.has_costs


@pytest.mark.skipif(not is_helper_supported(), reason="this system has no fork, or no limits for a process")
@pytest.mark.parametrize("name", ["tokenizer.json", "manifest.json"])
def test_helper_reads_only_what_the_signature_covers(signed: tuple[Path, Path], name: str) -> None:
    folder, public = signed
    content = (folder / name).read_bytes()
    assert b"\n" in content
    options: dict[str, Any] = {"threads": 1, "grammar_limits": GrammarLimits(), "trusted_keys": [public]}
    with Decoder.open(folder, **options) as decoder:
        (folder / name).write_bytes(content.replace(b"\n", b" ", 1))
        with pytest.raises(GrammarHelperError, match=r"is not the file that was signed|was replaced by"):
            decoder.generate(PROMPT, regex="[0-9]{2}", max_new_tokens=8)
        (folder / name).write_bytes(content)
        (folder / "empty").mkdir()
        assert decoder.generate(PROMPT, regex="[0-9]{2}", max_new_tokens=8).text.isdigit()


@pytest.mark.parametrize("kind", ["weights", "graph", "tokenizer.json", "manifest.json"])
def test_what_was_verified_is_what_is_opened(
    signed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder, public = signed
    path = folder / getattr(Bundle.open(folder).manifest, kind, kind)
    content, times = path.read_bytes(), path.stat()

    def write() -> None:
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    happen_after("check_signature", write, monkeypatch)
    with pytest.raises(BadInputError, match="changed while it was opened"):
        Decoder.open(folder, threads=1, defaults={}, trusted_keys=[public])


def test_an_open_decoder_keeps_its_bundle(tiny_bundle: Path, other_bundle: Path, tmp_path: Path) -> None:
    first, link = Path(shutil.copytree(tiny_bundle, tmp_path / "1")), tmp_path / "current"
    link.symlink_to(first, target_is_directory=True)
    with Decoder.open(link, threads=1) as decoder:
        expected = decoder.generate(PROMPT, max_new_tokens=48).text
        relink(link, other_bundle)
        shutil.rmtree(first)
        assert decoder.generate(PROMPT, max_new_tokens=48).text == expected
    assert text_of(link) != expected


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("rest", [0, None], ids=["truncated", "overwritten"])
def test_writing_to_mapped_weights_fails_the_next_forward(
    tiny_bundle: Path, tmp_path: Path, device: str, rest: int | None
) -> None:
    """Copy new weights over those of an open bundle. The first forward after that would crash, or mix two models."""
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    weights = Bundle.open(folder).weights
    with Decoder.open(folder, device=device, threads=1) as decoder:
        decoder.generate(PROMPT, max_new_tokens=1)
        content = weights.read_bytes()
        with weights.open("r+b") as file:
            file.write(content[:rest])
            file.truncate()
        with pytest.raises(EngineFailedError, match="was changed while the bundle was open"):
            decoder.generate(PROMPT, max_new_tokens=1)


def test_processes_open_the_bundle_themselves(tiny_bundle: Path) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder, pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(decoder)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(text_of, tiny_bundle).result() == text_of(tiny_bundle)


@pytest.mark.skipif(not is_helper_supported(), reason="this system has no fork, or no limits for a process")
def test_helper_refuses_a_bundle_that_took_the_place_of_its_own(
    tiny_bundle: Path, other_bundle: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    with Decoder.open(folder, threads=1, grammar_limits=GrammarLimits()) as decoder:
        replace_folder(folder, other_bundle)
        with pytest.raises(GrammarHelperError, match="was replaced by another bundle"):
            decoder.generate(PROMPT, regex="[0-9]{2}", max_new_tokens=8)
