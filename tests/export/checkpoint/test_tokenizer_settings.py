"""Every entry of tokenizer_config.json that transformers knows: used, without effect, or refused by name."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.export.checkpoint.test_auto_tokenizer import Files, differences, exported
from tests.export.checkpoints import small_checkpoint
from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer, TokenizersBackend

from lopa.runtime.errors import BadInputError

_READ = re.compile(r"kwargs\.(?:pop|get|setdefault)\(\s*\"(\w+)\"|\"(\w+)\" (?:not )?in (?:init_)?kwargs")
_ARGUMENTS = frozenset(
    {"token", "tokenizer", "cache_dir", "force_download", "proxies", "revision", "subfolder", "user_agent"}
)
"""Arguments of a call, which a file does not set."""
VALUES: dict[str, Any] = {
    "added_tokens_decoder": {"3": {"content": "!", "special": True}},
    "additional_special_tokens": ["Question"],
    "extra_special_tokens": ["Question"],
    "model_specific_special_tokens": {"image_token": "Question"},
    "auto_map": {"AutoTokenizer": ["tokenization_x.X", None]},
    "chat_template": "{{ messages[0].content }}!",
    "padding_side": "left",
    "truncation_side": "left",
    "model_max_length": 3,
    "max_len": 3,
    "max_length": 3,
    "stride": 1,
    "unk_id": 4,
    "model_input_names": ["input_ids"],
    "chat_control_tokens": ["Question"],
    "backend": "tokenizers",
    "vocab": {"a": 0},
    "merges": [],
    "tokenizer_class": "Qwen2Tokenizer",
    "pad_token_type_id": 1,
    "pad_to_multiple_of": 8,
}


def _known_fields() -> Iterator[str]:
    """Yield the names that transformers' classes read from tokenizer_config.json."""
    for function in (
        PreTrainedTokenizerBase.__init__,
        PreTrainedTokenizerBase._from_pretrained,
        TokenizersBackend.__init__,
        TokenizersBackend.convert_to_native_format,
    ):
        for found in _READ.findall(inspect.getsource(function)):
            yield from (name for name in found if name)
    yield from inspect.signature(Qwen2Tokenizer.__init__).parameters
    yield from PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES


FIELDS = sorted({name for name in _known_fields() if name not in (*_ARGUMENTS, "self", "kwargs") and name[0] != "_"})


def test_transformers_names_were_found() -> None:
    assert {"split_special_tokens", "added_tokens_decoder", "clean_up_tokenization_spaces", "merges"} < set(FIELDS)
    assert len(FIELDS) > 40


@pytest.mark.parametrize("name", FIELDS)
def test_a_changed_field(tmp_path: Path, name: str) -> None:
    """Check that a known field is as in transformers or refused by name, and that none of them is unknown."""
    files = Files()
    value = VALUES.get(name, "Question" if name.endswith("_token") and not name.startswith("add_") else True)
    files.config[name] = value
    folder = files.write(tmp_path)
    refused = ""
    try:
        assert not exported(folder).notes
    except BadInputError as error:
        refused = error.received
    assert name in refused if refused else differences(folder) is None


def test_an_unknown_field_is_a_warning(tmp_path: Path) -> None:
    files = Files()
    files.config |= {"sampling": "greedy", "other": None, "more": False, "image_token": "Question"}
    assert exported(files.write(tmp_path)).notes == ("tokenizer_config.json: sampling is unknown and has no effect",)


def test_spaces_that_are_cleaned_up(tmp_path: Path) -> None:
    """Check that the entry has no effect on BPE, as in transformers, and is refused for other models."""
    files = Files()
    files.config["clean_up_tokenization_spaces"] = True
    assert differences(files.write(tmp_path / "bpe")) is None
    words = small_checkpoint(tmp_path / "words")
    path = words / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "clean_up_tokenization_spaces": True}))
    with pytest.raises(BadInputError, match="clean_up_tokenization_spaces = True"):
        exported(words)


def test_chat_templates_of_all_files(tmp_path: Path) -> None:
    """Check which template wins: chat_template.jinja, more files, a list or an object of tokenizer_config.json."""
    files = Files()
    for given in (
        files.config["chat_template"],
        {"default": "d{{ messages[0].content }}", "tool_use": "t"},
        [{"name": "default", "template": "d{{ messages[0].content }}"}],
    ):
        files.config["chat_template"] = given
        assert differences(files.write(tmp_path)) is None
    (tmp_path / "chat_template.jinja").write_text("file {{ messages[0].content }}")
    assert differences(tmp_path) is None
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools {{ messages[0].content }}")
    assert differences(tmp_path) is None
    written = json.loads(exported(tmp_path).tokenizer_config)["chat_template"]
    assert {each["name"]: each["template"][:5] for each in written} == {"default": "file ", "tool_use": "tools"}


def test_a_template_that_loses_messages(tmp_path: Path) -> None:
    files = Files()
    files.config["chat_template"] = "{{ bos_token }}Answer:"
    with pytest.raises(BadInputError, match=r"renders the message .* as"):
        exported(files.write(tmp_path))
    files.config["chat_template"] = "{{ raise_exception('no user') }}"
    written = json.loads(exported(files.write(tmp_path)).tokenizer_config)
    assert written["chat_template"] == files.config["chat_template"]  # each chat says why it fails
