"""Where a conversation takes place: messages are answered, commands obeyed, an answer can be stopped."""

import contextlib
import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lopa.cli.decode.conversation import Conversation, Message
from lopa.cli.decode.interrupts import StoppedError, interrupts_as_exceptions, stoppable
from lopa.cli.decode.typed_lines import TypedLines
from lopa.cli.options.config import config_overrides, option_flags, value_of_flag
from lopa.cli.program.verbosity import quiet
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError, OutputFailedError
from lopa.runtime.files.output_file import write_whole
from lopa.runtime.generation_config import OPTIONS
from lopa.runtime.requests.result import DoneEvent, GenerationResult, TextEvent
from lopa.runtime.text.prompt_ids import Prompt

_COMMANDS = {
    "/help": "list the commands",
    "/reset": "begin a new conversation; the system message stays",
    "/system TEXT": "tell the model how to answer; without TEXT nothing more",
    "/undo": "take the last question and its answer back",
    "/save FILE": "write the conversation as JSON lines, a message each",
    "/set OPTION VALUE": "change an option of decoding, e.g. /set temperature 0.7; /set alone lists them",
    "/quit": "end",
}
_NO_TEMPLATE = "this bundle has no chat template: each message is continued as plain text, without those before it"


class ChatRoom:
    """A decoder, its options, and the conversation that is held with it."""

    def __init__(self, decoder: Decoder, overrides: dict[str, Any], conversation: Conversation) -> None:
        """Raises BadInputError for options that cannot be used, or a system message without a chat template."""
        self._decoder = decoder
        self._overrides = overrides
        self._config = decoder.config(**overrides)
        decoder.check_grammar(self._config)
        self._conversation = conversation
        self._has_template = decoder.tokenizer.has_chat_template
        self._refused = False
        if conversation.system is not None:
            self._need_template("--system")

    def run(self, texts: TypedLines) -> int:
        """Answer until there is no more; the exit code: 2 if something was refused and nobody sat there to see it."""
        if not self._has_template:
            _note(_NO_TEMPLATE)
        if texts.on_terminal:
            _note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends")
        with interrupts_as_exceptions():
            for text in texts:
                if text == "/quit":
                    break
                try:
                    self._heed(text)
                except (BadInputError, OutputFailedError) as error:
                    self._refused = True
                    click.echo(f"error: {error}", err=True)
        return 2 if self._refused and not texts.on_terminal else 0

    def _heed(self, text: str) -> None:
        if text.startswith("/"):
            self._obey(text)
        elif text.strip():
            self._answer(text)

    def _answer(self, question: str) -> None:
        """Print the answer to `question` and keep both, unless it is stopped."""
        prompt = self._prompt(question)
        result = None
        try:
            with stoppable() as stopped:
                for event in self._decoder.stream(prompt, self._config, on_step=stopped):
                    if isinstance(event, TextEvent):
                        click.echo(event.text, nl=False)
                    elif isinstance(event, DoneEvent):
                        result = event.result
        except StoppedError:
            click.echo()
            _note("stopped; the message and the answer are not kept")
            return
        click.echo()
        if result is not None:
            self._conversation.turns.append((question, result.text))
            _note(_summary(result))

    def _prompt(self, question: str) -> Prompt:
        if not self._has_template:
            return question
        forgotten = self._conversation.forget_until(self._fits, question)
        if forgotten:
            _note(f"the conversation outgrew the model's positions: its {forgotten} oldest turns are forgotten")
        return self._decoder.prompt_from_messages(self._conversation.messages(question))

    def _fits(self, messages: list[Message]) -> bool:
        room = self._decoder.bundle.manifest.dimensions.max_positions - self._decoder.plan(self._config).max_new_tokens
        return len(self._decoder.prompt_from_messages(messages)) <= room

    def _obey(self, line: str) -> None:
        """Do what a command says. Raises BadInputError for what is no command."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        known = {entry.split()[0]: entry for entry in _COMMANDS}
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise BadInputError(
                f"the command {name}",
                expected=", ".join(known),
                remedy=f"did you mean {near[0]}?" if near else "/help; a space before the / makes it a message",
            )
        act: dict[str, Callable[[str], None]] = {
            "/help": lambda _: _tell("\n".join(f"{entry:18} {text}" for entry, text in _COMMANDS.items())),
            "/reset": lambda _: self._reset(),
            "/system": self._set_system,
            "/undo": lambda _: self._undo(),
            "/save": self._save,
            "/set": self._set,
            "/quit": _refuse_text_of_quit,
        }
        act[name](rest)

    def _reset(self) -> None:
        self._conversation.reset()
        _note("a new conversation")

    def _undo(self) -> None:
        if not self._conversation.undo():
            raise BadInputError("/undo", expected="a turn to take back", remedy="ask something first")
        _note(f"{len(self._conversation.turns)} turns are left")

    def _set_system(self, text: str) -> None:
        self._need_template("/system")
        self._conversation.system = text or None
        _note("the model is told so from now on" if text else "no system message")

    def _save(self, name: str) -> None:
        if not name:
            raise BadInputError("/save", expected="the name of a file behind it", remedy="e.g. /save talk.jsonl")
        lines = self._conversation.lines()
        write_whole(Path(name), "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
        _note(f"{name}: {len(lines)} messages")

    def _set(self, rest: str) -> None:
        options = option_flags()
        if not rest:
            held = self._decoder.bundle.manifest.merged_options(self._config)
            _tell("\n".join(f"{name:24} {held[name]}" for name in OPTIONS))
            return
        name, _, value = rest.partition(" ")
        name = name.removeprefix("--").replace("-", "_")
        if name not in options or not value.strip():
            near = difflib.get_close_matches(name, options, n=1)
            raise BadInputError(
                f"/set {rest}",
                expected="an option of decoding and its value",
                remedy=f"did you mean /set {near[0]} VALUE?" if near else "/set alone lists the options",
            )
        overrides = {**self._overrides, **_parsed(options[name], value.strip())}
        self._config = self._decoder.config(**overrides)
        self._overrides = overrides
        _note(f"{name} {getattr(self._config, name)}")

    def _need_template(self, what: str) -> None:
        if not self._has_template:
            raise BadInputError(
                f"{what}, but {self._decoder.bundle.path} has no chat template",
                expected="a bundle with a chat template",
                remedy="write it into the message itself, or give a template: --chat-template FILE",
            )


def _parsed(option: click.Option, value: str) -> dict[str, Any]:
    """`value` as the flag `option` takes it. Raises BadInputError for another value."""
    assert option.name is not None
    with contextlib.suppress(click.BadParameter):
        return config_overrides({option.name: value_of_flag(option, value)})
    raise BadInputError(
        f"/set {option.name} {value}",
        expected=str(option.help),
        remedy="give such a value",
    )


def _refuse_text_of_quit(text: str) -> None:
    raise BadInputError(f"/quit {text}", expected="/quit alone", remedy="remove what is behind it")


def _summary(result: GenerationResult) -> str:
    return (
        f"{result.tokens} token{'' if result.tokens == 1 else 's'}, {result.tokens_per_forward:.2f} tokens per "
        f"forward, {result.seconds:.2f} s, stopped by {result.stop_reason}"
    )


def _tell(text: str) -> None:
    """What the user asked for; on standard error, where standard output holds answers alone."""
    click.echo(text, err=True)


def _note(text: str) -> None:
    """A word about the conversation, dim where there are colours, none with --quiet."""
    if not quiet():
        click.secho(f"({text})", err=True, dim=True)
