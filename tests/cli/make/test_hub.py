"""Ids of the Hugging Face Hub with huggingface_hub unmodified, in processes of their own, against a hub on loopback."""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("huggingface_hub")
pytest.importorskip("cryptography")
from tests.forked import run_program
from tests.hub_server import TOKEN, HubServer
from tests.runtime.signature.certificates import write_keys

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import write_manifest
from lopa.runtime.bundle.manifest import HubSource
from lopa.tiny import ADAPTER, CHECKPOINT

BASE, LORA, MADE = "org/base", "org/lora", "me/made"
COMMAND = "from lopa.cli.main import main; main()"
RESOLVE = """
from pathlib import Path
import click
from lopa.cli.make.hub_sources import local_sources
from tools.report import exit_on_error

@click.command()
@click.argument("checkpoint")
@click.option("--lora", type=Path)
@click.option("-o", "output", type=Path)
@click.option("--revision")
@click.option("--locked", is_flag=True)
def main(checkpoint, lora, output, revision, locked):
    found = local_sources(Path(checkpoint), lora, output, revision=revision, locked=locked)
    print("" if found.checkpoint_hub is None else found.checkpoint_hub.commit, end="")

with exit_on_error():
    main()
"""
"""Program that finds the sources of an export, as its command does, without the export."""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer(tmp_path / "hub-home")
    other = {"pytorch_model.bin": b"a pickle", "modeling.py": b"raise SystemExit", "onnx/config.json": b"{}"}
    server.state.commit_folder(BASE, CHECKPOINT, **other, **{"README.md": b"---\nlicense: apache-2.0\n---\n"})
    server.state.commit_folder(LORA, ADAPTER)
    yield server
    server.close()


@pytest.fixture
def run(hub: HubServer, kept_traces_of_processes: dict[str, str], tmp_path: Path) -> Run:
    """Return a function that runs lopa-export, or another program, with the hub on loopback, in an empty folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    traces = {"KEPT_TRACES": kept_traces_of_processes["KEPT_TRACES"]}

    def run_command(
        *arguments: object, program: str = COMMAND, token: str = "", code: int | None = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        command, *rest = map(str, arguments)
        words = rest if command == "sources" else [command, *rest]
        variables = others | traces | hub.environment | environment | ({"HF_TOKEN": token} if token else {})
        program = RESOLVE if command == "sources" else program
        done = run_program(program, words, folder, variables)
        assert code is None or done.returncode == code, done.stderr
        return done

    return run_command


def cached(hub: HubServer, repository: str) -> set[str]:
    """Return the names of the files of a repository in the cache."""
    folder = Path(hub.environment["HF_HOME"], "hub", "models--" + repository.replace("/", "--"), "snapshots")
    return {path.relative_to(folder).as_posix().partition("/")[2] for path in folder.rglob("*") if path.is_file()}


def test_an_export_downloads_only_what_it_needs_and_records_the_commits(
    hub: HubServer, run: Run, tmp_path: Path
) -> None:
    run("onnx", BASE, "--lora", LORA, "-o", "bundle", "--quantize", "int4")
    assert cached(hub, BASE) == {path.name for path in CHECKPOINT.iterdir() if path.suffix in (".json", ".safetensors")}
    assert cached(hub, LORA) == {"adapter_config.json", "adapter_model.safetensors"}
    origin = Bundle.open(tmp_path / "work" / "bundle").manifest.origin
    assert origin.checkpoint_hub is not None
    assert origin.adapter_hub is not None
    assert (origin.checkpoint_hub.repository, origin.adapter_hub.repository) == (BASE, LORA)
    assert origin.checkpoint_hub.commit == hub.state.branches[BASE, "main"]
    run("push", "bundle", MADE, token=TOKEN)
    card = hub.state.files(MADE)["README.md"].decode()
    commit = origin.checkpoint_hub.commit
    for part in ("license: apache-2.0", f"base_model: {BASE}", "base_model_relation: quantized", commit, "int4", LORA):
        assert part in card
    hub.state.log.clear()
    assert run("sources", f"{BASE}@{commit}", HF_HUB_OFFLINE="1").stdout == commit
    assert hub.state.log == []


def test_revisions_and_locked(hub: HubServer, run: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    first = hub.state.branches[BASE, "main"]
    hub.state.branches[BASE, "v1"] = first
    assert run("sources", BASE, "--revision", "v1", "-o", "bundle").stdout == first
    bundle = Bundle.open(shutil.copytree(tiny_bundle, tmp_path / "work" / "bundle"))
    origin = msgspec.structs.replace(bundle.manifest.origin, checkpoint_hub=HubSource(repository=BASE, commit=first))
    write_manifest(dataclasses.replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, origin=origin)))
    config = json.loads((CHECKPOINT / "config.json").read_text())
    second = hub.state.commit_folder(BASE, CHECKPOINT, **{"config.json": json.dumps(config | {"x": 1}).encode()})
    hub.state.branches[BASE, "v1"] = second
    # The recorded commit, although main has moved.
    assert run("sources", BASE, "-o", "bundle", "--locked").stdout == first
    moved = run("sources", BASE, "--revision", "v1", "-o", "bundle", "--locked", code=2)
    assert f"is commit {second} now, and was {first}" in moved.stderr
    assert run("sources", BASE, "-o", "bundle").stdout == second
    unlocked = run("sources", f"{BASE}@main", "-o", "new", "--locked", code=2)
    assert "names no commit" in unlocked.stderr
    assert run("sources", f"{BASE}@{first}", "-o", "new", "--locked").stdout == first
    for arguments, message in (
        ((CHECKPOINT, "--revision", "v1"), "--revision needs a CHECKPOINT on the Hugging Face Hub"),
        ((CHECKPOINT, "--locked"), "--locked needs"),
        ((f"{BASE}@v1", "--revision", "main"), "two revisions"),
    ):
        assert message in run("onnx", *arguments, "-o", "other", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "message", "remedy"),
    [
        (("org/none",), "the Hub has no repository org/none, or it is private", "check the spelling"),
        (("org/gated",), "org/gated is gated", "accept the terms at"),
        ((f"{BASE}@v9",), f"{BASE} has no revision 'v9'", "a branch, a tag or a commit"),
    ],
)
def test_what_the_hub_refuses(
    hub: HubServer, run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str, remedy: str
) -> None:
    hub.state.commit_folder("org/gated", CHECKPOINT)
    hub.state.gated.add("org/gated")
    refused = run("sources", *arguments, "-o", "bundle", code=2)
    assert message in refused.stderr
    assert remedy in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list((tmp_path / "work").iterdir())


def test_a_token_opens_a_gated_repository_and_goes_to_the_hub_only(hub: HubServer, run: Run) -> None:
    hub.state.commit_folder("org/gated", CHECKPOINT)
    hub.state.gated.add("org/gated")
    assert "is gated" in run("sources", "org/gated", "-o", "bundle", token="hf_wrong", code=2).stderr
    run("sources", "org/gated", "-o", "bundle", token=TOKEN)


def test_a_cut_connection_is_resumed_and_repeated_cuts_are_reported(hub: HubServer, run: Run, tmp_path: Path) -> None:
    hub.state.cuts["model.safetensors"] = [1000]
    run("sources", BASE, "-o", "bundle")
    shutil.rmtree(hub.environment["HF_HOME"])
    hub.state.cuts["model.safetensors"] = [1000] * 50
    failed = run("sources", BASE, "-o", "other", code=2)
    assert f"{BASE}: the transfer failed" in failed.stderr
    assert "complete files are kept" in failed.stderr
    hub.state.cuts.clear()
    hub.state.log.clear()
    run("sources", BASE, "-o", "other")
    assert not [path for path in hub.state.downloads() if path.endswith("/tokenizer.json")]  # kept from the failed run


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_with_another_digest_is_removed(hub: HubServer, run: Run, name: str) -> None:
    hub.state.wrong.add(name)
    refused = run("sources", BASE, "-o", "bundle", code=2)
    assert f"{name} arrived with another digest than the Hub states" in refused.stderr
    assert name not in cached(hub, BASE)
    hub.state.wrong.clear()
    run("sources", BASE, "-o", "bundle")


@pytest.mark.parametrize(
    ("header", "value", "message"),
    [
        ("ETag", '"{tmp}/outside"', "the ETag"),
        ("X-Linked-Etag", '"../../../../outside"', "the ETag"),
        ("X-Repo-Commit", "../../../../../../outside", "the commit"),
        ("Location", "file://{tmp}/hub-home", "is not encrypted"),
        ("X-Linked-Size", "3", "file should be of size 3 but has size"),
    ],
)
def test_headers_that_are_not_the_hubs_are_refused_and_write_nothing(
    hub: HubServer, run: Run, tmp_path: Path, header: str, value: str, message: str
) -> None:
    hub.state.headers[header] = value.format(tmp=tmp_path)
    arguments = ("inspect", f"hf://{BASE}") if header == "ETag" else ("sources", BASE, "-o", "bundle")
    assert message in run(*arguments, code=2).stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"hub-home", "work"}
    assert not list(tmp_path.rglob("outside*"))
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"": {"id": BASE, "sha": "../../../../outside"}}, "the revision has the commit '../../../../outside'"),
        ({"/tree/{commit}": [{"type": "file"}]}, "answers otherwise than a Hub: 'path' is missing"),
        (
            {"/tree/{commit}": [{"type": "file", "path": "C:a.json", "size": 1, "oid": "0" * 40}]},
            "Invalid filename",
        ),
    ],
)
def test_lists_that_are_not_the_hubs_are_refused_by_what_is_wrong(
    hub: HubServer, run: Run, tmp_path: Path, answers: dict[str, object], message: str
) -> None:
    commit = hub.state.branches[BASE, "main"]
    for path, answer in answers.items():
        hub.state.answers[f"/api/models/{BASE}{path.format(commit=commit)}"] = answer
    assert message in run("sources", BASE, "-o", "bundle", code=2).stderr
    assert not list(tmp_path.rglob("outside*"))


@pytest.mark.parametrize("part", ["lfs", "xetHash"])
def test_a_file_of_xet_is_named_by_a_digest(hub: HubServer, run: Run, tmp_path: Path, part: str) -> None:
    """List a file with a path as its digest. For files of Xet, huggingface_hub takes the name from the list."""
    entry: dict[str, Any] = {"type": "file", "path": "model.safetensors", "size": 9, "oid": "0" * 40}
    outside = str(tmp_path / "outside" / "blob")
    entry |= {"lfs": {"oid": "1" * 64, "size": 9, "pointerSize": 130}, "xetHash": "2" * 64}
    entry |= {"xetHash": outside} if part == "xetHash" else {"lfs": {**entry["lfs"], "oid": outside}}
    commit = hub.state.branches[BASE, "main"]
    hub.state.answers[f"/api/models/{BASE}/tree/{commit}"] = [entry]
    for arguments in (("sources", BASE), ("inspect", f"hf://{BASE}")):
        assert "'model.safetensors' has the digest" in run(*arguments, code=2, HF_HUB_DISABLE_XET="0").stderr
    assert not list(tmp_path.rglob("outside*"))


def test_another_commit_than_the_requested_is_refused(hub: HubServer, run: Run) -> None:
    commit = hub.state.branches[BASE, "main"]
    hub.state.answers[f"/api/models/{BASE}/revision/{commit}"] = {"id": BASE, "sha": "1" * 40}
    assert f"the revision has the commit '{'1' * 40}'" in run("sources", f"{BASE}@{commit}", code=2).stderr


def test_http_to_another_machine_has_to_be_allowed(hub: HubServer, run: Run, tmp_path: Path) -> None:
    elsewhere = {"HF_ENDPOINT": "http://192.0.2.1:9", "HF_HUB_ETAG_TIMEOUT": "1"}
    for arguments in (("sources", BASE), ("inspect", f"hf://{BASE}")):
        refused = run(*arguments, **elsewhere, code=2)
        assert "http://192.0.2.1/api/models/org/base is not encrypted" in refused.stderr
        assert "LOPA_HUB_ALLOW_HTTP=1" in refused.stderr
    tried = run("sources", BASE, **elsewhere, HTTP_PROXY="http://127.0.0.1:9", LOPA_HUB_ALLOW_HTTP="1", code=2)
    assert "is not encrypted" not in tried.stderr


def test_weak_etags_and_the_hub_s_own_clients_keep_working(hub: HubServer, run: Run) -> None:
    digest = hashlib.sha256((CHECKPOINT / "model.safetensors").read_bytes()).hexdigest()
    hub.state.headers["X-Linked-Etag"] = f'W/"{digest}"'
    run("sources", BASE, "-o", "bundle")
    program = (
        "import sys; from lopa.runtime.hub.checked_api import checked_api; import huggingface_hub as hub\n"
        "checked_api(); checked_api(); print(hub.get_session().event_hooks)\n"
        "print(hub.get_hf_file_metadata(sys.argv[1]).etag)"
    )
    hub.state.headers["X-Linked-Etag"] = '"any-text"'
    url = f"{hub.environment['HF_ENDPOINT']}/{BASE}/resolve/main/model.safetensors"
    done = run(url, program=program)
    assert done.stdout.splitlines()[-1] == "any-text", done.stderr  # another user of the library in the process
    assert done.stdout.count("_check_answer") == 1


def test_offline_without_the_files_and_without_a_connection(hub: HubServer, run: Run) -> None:
    missing = run("sources", BASE, "-o", "bundle", code=2, HF_HUB_OFFLINE="1")
    assert f"{BASE} is not complete in the cache, and HF_HUB_OFFLINE is set" in missing.stderr
    run("sources", BASE, "-o", "bundle")
    run("sources", BASE, "-o", "offline", HF_HUB_OFFLINE="1")
    run("sources", BASE, "-o", "unreachable", HF_ENDPOINT="http://127.0.0.1:9")
    missing = run("sources", LORA, "-o", "no", code=2, HF_ENDPOINT="http://127.0.0.1:9")
    assert "the Hub cannot be reached" in missing.stderr


def test_a_full_disk_is_reported_before_and_during_the_download(hub: HubServer, run: Run, tmp_path: Path) -> None:
    full = "import shutil; used = shutil.disk_usage('.'); shutil.disk_usage = lambda _: used._replace(free=1000)\n"
    before = run("onnx", BASE, "-o", "b", program=full + COMMAND, code=2)
    assert ("GiB are free" in before.stderr, "HF_HOME" in before.stderr) == (True, True)
    assert not hub.state.downloads()
    limited = (
        "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    )
    assert "the transfer failed" in run("onnx", BASE, "-o", "b", program=limited + COMMAND, code=2).stderr
    assert not list((tmp_path / "work").iterdir())


def test_a_bundle_is_pushed_opened_and_kept_unchanged(
    hub: HubServer, run: Run, tiny_bundle: Path, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "work" / "bundle"))
    private, public = write_keys(tmp_path, "signer")
    (bundle / "engines").mkdir()
    (bundle / "engines" / "code.bin").write_text("an engine")
    refused = run("push", "bundle", MADE, code=2)
    assert "the transfer failed" in refused.stderr or "log in" in refused.stderr
    assert MADE not in hub.state.commits
    done = run("push", "bundle", MADE, "--license", "mit", token=TOKEN)
    assert f"hf://{MADE}" in done.stdout
    files = hub.state.files(MADE)
    assert {name: files[name] for name in files if name != "README.md"} == {
        path.name: path.read_bytes() for path in bundle.iterdir() if path.is_file()
    }
    card = files["README.md"].decode()
    for part in ("license: mit", "library_name: lopa-export", f'Decoder.open("hf://{MADE}")', "float32", "dream"):
        assert part in card
    question = ("Question: 1 + 1?\nAnswer:", "--max-new-tokens", 8, "--quiet")
    answers = [run("generate", path, *question).stdout for path in ("bundle", f"hf://{MADE}", f"hf://{MADE}@main")]
    assert answers[0]
    assert len(set(answers)) == 1
    hub.state.log.clear()
    commit = hub.state.branches[MADE, "main"]
    offline = run("generate", f"hf://{MADE}@{commit}", *question, HF_HUB_OFFLINE="1")
    assert (offline.stdout, hub.state.log) == (answers[0], [])
    assert "engines/code.bin" not in cached(hub, MADE)
    for command in (("edit", f"hf://{MADE}", "--default", "branches=2"), ("sign", f"hf://{MADE}", "--key", private)):
        assert "cannot write into" in run(*command, code=2).stderr
    shutil.rmtree(bundle / "engines")
    run("sign", "bundle", "--key", private)
    run("push", "bundle", MADE, token=TOKEN)
    run("verify", f"hf://{MADE}", "--signature", "--trusted-key", public)


def test_a_card_that_a_person_changed_is_kept(hub: HubServer, run: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "work" / "bundle")
    run("push", "bundle", MADE, token=TOKEN)
    run("push", "bundle", MADE, token=TOKEN)  # our own card is replaced
    files = hub.state.files(MADE)
    changed = files["README.md"].replace(b"A diffusion language model", b"My diffusion language model")
    hub.state.commit(MADE, {**files, "README.md": changed})
    refused = run("push", "bundle", MADE, token=TOKEN, code=2)
    assert "has a model card that this command did not write" in refused.stderr
    assert hub.state.files(MADE)["README.md"] == changed
    run("push", "bundle", MADE, "--overwrite-card", token=TOKEN)
    assert hub.state.files(MADE)["README.md"] != changed


def test_a_damaged_bundle_is_not_pushed_nor_opened(hub: HubServer, run: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "work" / "bundle"))
    hub.state.commit_folder(MADE, bundle, **{"engines/code.bin": b"an engine", "load.py": b"raise SystemExit"})
    content = bytearray((bundle / "model.onnx.data").read_bytes())
    content[100] ^= 1
    (bundle / "model.onnx.data").write_bytes(content)
    assert "model.onnx.data" in run("push", "bundle", "me/damaged", token=TOKEN, code=1).stderr
    assert "me/damaged" not in hub.state.commits
    assert "ORG/NAME" in run("push", "bundle", "no-organization", token=TOKEN, code=2).stderr
    hub.state.wrong.add("model.onnx")
    assert "another digest" in run("inspect", f"hf://{MADE}", code=2).stderr
    hub.state.wrong.clear()
    assert "dream" in run("inspect", f"hf://{MADE}").stdout
    assert not cached(hub, MADE) & {"engines/code.bin", "load.py"}
