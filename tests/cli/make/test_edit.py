"""lopa-export edit: a bundle's defaults and chat template, and the other commands that set them."""

import json
import shutil
from pathlib import Path

import pytest
from tests.buckets import params_of
from tests.cli.command import PROMPT, lopa_export
from tests.export.checkpoints import ONE_LAYER, small_checkpoint
from tests.runtime.bundle.test_buckets import BUCKETS

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.text.tokenizer import Tokenizer

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\\n' }}{% endfor %}Answer:"
TALK = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jinja"
    path.write_text(TEMPLATE)
    return path


def test_defaults_are_set_shown_used_and_unset(bundle: Path) -> None:
    before = (bundle / MANIFEST_NAME).read_bytes()
    done = lopa_export(
        "edit", bundle, "--default", "strategy=eb", "--default", "gamma=0.4", "--default", "unmask-first-masked=true",
        "--default", "branches=2", "--default", "stop=###", "--default", "stop=\n",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    shown = "stop ['###', '\\n'], strategy eb, branches 2, unmask_first_masked True, gamma 0.4"
    assert f"defaults: {shown}; chat template: as exported" in done.stdout
    assert f"defaults    {shown}\n" in lopa_export("inspect", bundle).stdout
    flags = ("--strategy", "eb", "--gamma", 0.4, "--branches", 2, "--unmask-first-masked", "--stop", "###")
    by_default = lopa_export("generate", bundle, PROMPT, "-q")
    assert by_default.stdout == lopa_export("generate", bundle, PROMPT, "-q", *flags, "--stop", "\n").stdout
    changed = lopa_export("edit", bundle, "--default", "strategy=d2f")
    assert changed.returncode == 0
    assert "removed branches 2" in changed.stderr
    assert "removed gamma 0.4" in changed.stderr
    unset = ("--unset", "strategy", "--unset", "unmask-first-masked", "--unset", "stop")
    assert lopa_export("edit", bundle, *unset).returncode == 0
    assert (bundle / MANIFEST_NAME).read_bytes() == before


def test_a_chat_template_is_added_and_removed(bundle: Path, template: Path) -> None:
    without = lopa_export("generate", bundle, "--chat", "Hello")
    assert (without.returncode, "lopa-export edit BUNDLE --chat-template FILE" in without.stderr) == (2, True)
    done = lopa_export("edit", bundle, "--chat-template", template)
    assert (done.returncode, "chat template: set by edit" in done.stdout) == (0, True)
    assert "template in manifest.json" in lopa_export("inspect", bundle).stdout
    chat = lopa_export("generate", bundle, "--chat", "Hello", "-q", "--max-new-tokens", 16)
    plain = lopa_export("generate", bundle, "user: Hello\nAnswer:", "-q", "--max-new-tokens", 16)
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout == plain.stdout
    assert lopa_export("edit", bundle, "--unset", "chat_template").returncode == 0
    assert "template" not in lopa_export("inspect", bundle).stdout


def test_chat_and_generate_take_a_template_of_their_own(tiny_bundle: Path, template: Path) -> None:
    plain = lopa_export("generate", tiny_bundle, "user: Hello\nAnswer:", "-q", "--max-new-tokens", 16)
    for arguments in (
        ("generate", tiny_bundle, "Hello", "--chat"),
        ("chat", tiny_bundle),
    ):
        stdin = "Hello\n" if arguments[0] == "chat" else ""
        given = ("--chat-template", template, "-q", "--max-new-tokens", 16)
        done = lopa_export(*arguments, *given, stdin=stdin)
        assert done.returncode == 0, done.stderr
        assert done.stdout == plain.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no template at all", "as 'no template at all'"),
        ('{"chat_template": "{{ messages }}"}', "is a JSON object"),
        ("{{ raise_exception('not today') }}", "not today"),
        ("{{ messages[0].content }}" + "x" * 100_001, "100026 characters"),
    ],
    ids=lambda text: text[:20],
)
def test_a_template_is_checked_before_anything_is_written(
    bundle: Path, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "bad.jinja"
    file.write_text(text)
    before = (bundle / MANIFEST_NAME).read_bytes()
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    for arguments in (
        ("edit", bundle, "--default", "branches=2"),
        ("generate", bundle, "Hello", "--chat"),
        ("onnx", checkpoint, "-o", tmp_path / "made"),
    ):
        done = lopa_export(*arguments, "--chat-template", file)
        assert done.returncode == 2
        assert message in done.stderr
        assert "what to do: " in done.stderr
    assert (bundle / MANIFEST_NAME).read_bytes() == before
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to change"),
        (("--default", "gama=1"), "did you mean gamma=1?"),
        (("--default", "gamma=0.1", "--default", "gamma=0.2"), "--default gamma twice"),
        (("--default", "gamma=0.1"), "gamma 0.1 with strategy 'lopa'"),
        (("--unset", "branches"), "nothing to unset: the bundle is as exported"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_invalid_defaults_are_rejected(tiny_bundle: Path, arguments: tuple[str, ...], message: str) -> None:
    before = (tiny_bundle / MANIFEST_NAME).read_bytes()
    done = lopa_export("edit", tiny_bundle, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert (tiny_bundle / MANIFEST_NAME).read_bytes() == before


def test_a_plan_too_small_for_the_defaults_is_reported(bundle: Path) -> None:
    (bundle / BUCKETS_NAME).write_bytes(json_from_record(params_of(Bundle.open(bundle), buckets=BUCKETS)))
    done = lopa_export("edit", bundle, "--default", "block_size=512", "--default", "max_new_tokens=1024")
    assert done.returncode == 0
    assert f"warning: {bundle / BUCKETS_NAME} covers windows of" in done.stderr
    assert f"lopa-export plan {'BUNDLE'}" in done.stderr


def test_an_export_with_defaults_and_a_template(tmp_path: Path, template: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes=ONE_LAYER)
    made = tmp_path / "bundle"
    defaults = ("--default", "strategy=factor", "--default", "factor=2")
    done = lopa_export("onnx", checkpoint, "-o", made, *defaults, "--chat-template", template)
    assert done.returncode == 0, done.stderr
    manifest = Bundle.open(made).manifest
    assert manifest.defaults == {"strategy": "factor", "factor": 2.0}
    assert manifest.decoding.strategy == "lopa"
    assert json.loads((made / "tokenizer_config.json").read_bytes())["chat_template"] == TEMPLATE
    assert Tokenizer.open(Bundle.open(made)).chat_text(TALK) == "<|begin|>user: Hello\nAnswer:"
    with Decoder.open(made, ["numpy"]) as decoder:
        assert (decoder.params().strategy, decoder.params().own) == ("factor", {"factor": 2.0})
