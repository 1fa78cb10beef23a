"""Arguments as users of other libraries write them: one device, one stop text, messages, and other names of options."""

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime import Chat, Decoder, Engine, GenerationConfig
from lopa.runtime.errors import BadInputError

PROMPT = "Question: Ida has 4 pens and buys 3 more. How many pens does Ida have?\nAnswer:"
MESSAGES = [{"role": "user", "content": "Ida has 4 pens and buys 3 more. How many pens does Ida have?"}]

TEMPLATE = "{% for message in messages %}Question: {{ message.content }}\nAnswer:{% endfor %}"


@pytest.fixture(scope="module")
def chat_decoder(tiny_bundle: Path) -> Any:
    with Decoder.open(tiny_bundle, device="cpu", threads=1, chat_template=TEMPLATE) as decoder:
        yield decoder


@pytest.mark.parametrize("opened", [Decoder, Engine])
def test_one_device_by_either_name(opened: Any, tiny_bundle: Path) -> None:
    for device in ({"device": "numpy"}, {"devices": "numpy"}, {"devices": ["numpy"]}):
        with opened.open(tiny_bundle, **device) as found:
            assert getattr(found, "decoder", found).devices == ["numpy"]
    with pytest.raises(BadInputError, match=r"device 'cpu' and devices \['numpy'\]"):
        opened.open(tiny_bundle, ["numpy"], device="cpu")


def test_one_stop_text_is_a_list_of_one(decoder: Decoder) -> None:
    assert GenerationConfig(stop="####") == GenerationConfig(stop=["####"])
    stopped = decoder.generate(PROMPT, stop="####", max_new_tokens=64)
    assert (stopped.stop_reason, stopped.stop_string) == ("stop_string", "####")


def test_messages_are_one_chat(chat_decoder: Decoder) -> None:
    expected = chat_decoder.generate(Chat(MESSAGES), max_new_tokens=16)
    assert chat_decoder.generate(MESSAGES, max_new_tokens=16).text == expected.text
    assert chat_decoder.generate(messages=MESSAGES, max_new_tokens=16).text == expected.text
    assert "".join(chat_decoder.stream_text(messages=MESSAGES, max_new_tokens=16)) == expected.text
    assert [each.text for each in chat_decoder.generate([MESSAGES, MESSAGES], max_new_tokens=16)] == 2 * [expected.text]
    with Engine(chat_decoder) as engine:
        assert engine.submit(messages=MESSAGES, max_new_tokens=16).result().text == expected.text
        assert engine.submit(MESSAGES, max_new_tokens=16).result().text == expected.text
    for arguments in ((), (None,)):
        with pytest.raises(BadInputError, match="no prompt"):
            chat_decoder.generate(*arguments)
    for several in (lambda: chat_decoder.stream(["a", "b"]), lambda: chat_decoder.prepare(["a", "b"])):  # type: ignore[list-item]
        with pytest.raises(BadInputError, match="2 texts as one prompt"):
            several()
    unread: Any
    for unread in (Path("t.jinja"), "t.jinja"):
        with pytest.raises(BadInputError, match=r"chat_template is .*t\.jinja'\)?\n.*\n.*read the file"):
            Decoder.open(chat_decoder.bundle.path, chat_template=unread)
    with pytest.raises(BadInputError, match=r"invalid messages 'hello'\n.*a list of .*\n.*\[{"):
        chat_decoder.generate(messages="hello")  # type: ignore[call-overload]
    with pytest.raises(BadInputError, match=r"invalid prompts b'a'\n.*\n.*decode\(\)"):
        chat_decoder.generate(b"a")  # type: ignore[call-overload]
    with pytest.raises(BadInputError, match="a prompt and messages"):
        chat_decoder.generate("text", messages=MESSAGES)  # type: ignore[call-overload]


def test_an_engine_is_opened_as_a_decoder_is(tiny_bundle: Path, chat_decoder: Decoder) -> None:
    engine, usual = (inspect.signature(each.open).parameters for each in (Engine, Decoder))
    assert usual.keys() <= engine.keys()
    with Engine.open(tiny_bundle, chat_template=TEMPLATE, defaults={"max_new_tokens": 16}) as opened:
        expected = chat_decoder.generate(MESSAGES, max_new_tokens=16)
        assert opened.submit(messages=MESSAGES).result().token_ids == expected.token_ids
    kind: Any
    for kind in (Decoder, Engine):
        with pytest.raises(BadInputError, match=rf" is 'out/bundle'\n.*\n.*use {kind.__name__}\.open"):
            kind("out/bundle", devices=["cpu"])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_tokens", "max_new_tokens"),
        ("gen_length", "max_new_tokens"),
        ("block_length", "block_size"),
        ("branch", "branches"),
    ],
)
def test_an_unknown_option_gets_the_name_that_is_meant(name: str, meant: str, decoder: Decoder) -> None:
    calls = (
        lambda: GenerationConfig(**{name: 4}),
        lambda: GenerationConfig.from_mapping({name: 4}),
        lambda: decoder.generate(PROMPT, **{name: 4}),
        lambda: decoder.stream(PROMPT, **{name: 4}),
    )
    for call in calls:
        with pytest.raises(BadInputError, match=f"unknown option '{name}'") as raised:
            call()
        assert raised.value.remedy == f"did you mean {meant}?"
        assert len(str(raised.value)) < 200, "no list of all options"


def test_an_unknown_argument_gets_the_name_that_is_meant(decoder: Decoder, tiny_bundle: Path) -> None:
    usual: Any = decoder
    for method, arguments, meant in (
        (usual.generate, {"prompt": PROMPT}, "prompts"),
        (usual.stream_text, {"prompts": PROMPT, "max_seqs": 2}, "prompt"),
        (Engine.open, {"path": tiny_bundle, "max_seqs": 2}, "max_num_seqs"),
    ):
        with pytest.raises(BadInputError, match=rf"did you mean {meant}\?"):
            method(**arguments)
    with pytest.raises(BadInputError, match=r"on_step, or a decoding option .*\n.*pass each option by name"):
        usual.generate(PROMPT, options={"max_new_tokens": 5})


def test_a_config_can_be_copied_and_pickled() -> None:
    config = GenerationConfig(branches=3, stop="x")
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
