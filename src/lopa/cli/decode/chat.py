"""lopa-export chat: a conversation with the model of a bundle, on a terminal or line by line."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from lopa.cli.decode.answer_view import result_of_events, summary_of_result
from lopa.cli.decode.chat_input import ChatInput, StoppedError, interrupts_as_exceptions, stoppable
from lopa.cli.options.decoding_options import (
    DecodingCommand,
    chat_template_option,
    checked_overrides,
    config_options,
    config_overrides,
    option_flags,
    option_name,
    value_of_flag,
)
from lopa.cli.options.devices import device_options
from lopa.cli.program.grouped_command import INPUT, option
from lopa.cli.program.verbosity import quiet
from lopa.cli.terminal.opening import open_decoder
from lopa.runtime.chat.chat import Chat
from lopa.runtime.chat.prepared_chat import ids_from_chat
from lopa.runtime.decoder import Decoder
from lopa.runtime.device_families import on_mpi
from lopa.runtime.errors import REQUEST_ERRORS, BadInputError, OutputFailedError
from lopa.runtime.files.output_file import write_atomically
from lopa.runtime.generation_config import OPTIONS, GenerationConfig, check_effects, did_you_mean
from lopa.runtime.requests.request import Prompt

Message = dict[str, str]


@dataclass
class Conversation:
    """Questions with their answers, after an optional system message."""

    system: str | None = None
    turns: list[tuple[str, str]] = field(default_factory=list)
    dropped: int = 0
    """Number of oldest turns that the model no longer receives."""

    def messages(self, question: str | None = None) -> list[Message]:
        """Return the model's input: the system message, the turns that are not dropped, and a new question."""
        shown = [("system", self.system)] if self.system is not None else []
        for question_before, answer in self.turns[self.dropped :]:
            shown += [("user", question_before), ("assistant", answer)]
        if question is not None:
            shown.append(("user", question))
        return [{"role": role, "content": text} for role, text in shown if text is not None]

    def drop_until(self, fits: Callable[[list[Message]], bool], question: str) -> int:
        """Drop the oldest turns until the messages with `question` fit.

        Returns the number of turns dropped now. If even dropping all does not suffice, it drops none.
        """
        before = self.dropped
        for count in range(len(self.turns) - before + 1):
            self.dropped = before + count
            if fits(self.messages(question)):
                return count
        self.dropped = before
        return 0

    def undo(self) -> bool:
        """Remove the last turn. Returns False when there is none."""
        if not self.turns:
            return False
        self.turns.pop()
        self.dropped = min(self.dropped, len(self.turns))
        return True

    def reset(self) -> None:
        """Remove all turns and keep the system message."""
        self.turns.clear()
        self.dropped = 0

    def lines(self) -> list[str]:
        """Return every message, including dropped ones, as a line of JSON."""
        whole = Conversation(self.system, self.turns)
        return [json.dumps(message, ensure_ascii=False) for message in whole.messages()]


_COMMANDS = {
    "/help": "list the commands",
    "/reset": "start a new conversation; the system message stays",
    "/system TEXT": "set the system message; without TEXT remove it",
    "/undo": "remove the last question and its answer",
    "/save FILE": "write the conversation as JSON lines, one message each",
    "/set OPTION VALUE": "change a decoding option, e.g. /set temperature 0.7; /set alone lists them",
    "/quit": "end, as /exit does",
}
_QUIT = ("/quit", "/exit")
_NO_TEMPLATE = "the bundle has no chat template: each message is continued as plain text, without earlier messages"


class ChatSession:
    """A decoder, its options, and one conversation."""

    def __init__(self, decoder: Decoder, overrides: dict[str, Any], conversation: Conversation) -> None:
        """Start a session. Raises BadInputError for bad options and for a system message without a chat template."""
        self._decoder = decoder
        self._overrides = overrides
        self._resolved = decoder.check_grammar(GenerationConfig.from_mapping(overrides))
        self._conversation = conversation
        self._has_template = decoder.tokenizer.has_chat_template
        self._refused = False
        if conversation.system is not None:
            self._check_template("--system")

    def run(self, messages: ChatInput) -> int:
        """Answer all messages and return the exit code: 2 if one was rejected without a terminal, otherwise 0."""
        if not self._has_template:
            _print_notice(_NO_TEMPLATE)
        if messages.on_terminal:
            _print_notice("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends")
        if self._resolved.preset is not None:
            _print_notice(f"preset {self._resolved.preset}")
        with interrupts_as_exceptions():
            for text in messages:
                if text in _QUIT:
                    break
                try:
                    self._handle(text)
                except (*REQUEST_ERRORS, OutputFailedError) as error:
                    self._refused = True
                    click.echo(f"error: {error}", err=True)
        return 2 if self._refused and not messages.on_terminal else 0

    def _handle(self, text: str) -> None:
        if text.startswith("/"):
            self._run_command(text)
        elif text.strip():
            self._answer(text)

    def _answer(self, question: str) -> None:
        """Print the answer to `question` and add both to the conversation, unless the answer is stopped."""
        prompt = self._prompt(question)
        try:
            with stoppable() as on_step:
                result = result_of_events(self._decoder.stream(prompt, self._resolved.config, on_step=on_step))
        except StoppedError:
            click.echo()
            _print_notice("stopped; the message and the answer are not kept")
            return
        click.echo()
        self._conversation.turns.append((question, result.text))
        _print_notice(summary_of_result(result))

    def _prompt(self, question: str) -> Prompt:
        if not self._has_template:
            return question
        dropped = self._conversation.drop_until(self._fits, question)
        if dropped:
            _print_notice(f"the conversation exceeds the model's positions: its {dropped} oldest turns are dropped")
        return Chat(self._conversation.messages(question))

    def _fits(self, messages: list[Message]) -> bool:
        positions = self._decoder.bundle.manifest.dimensions.max_positions
        config, limit = self._resolved.config, positions - self._resolved.params.max_new_tokens
        return len(ids_from_chat(self._decoder.tokenizer, Chat(messages), config)) <= limit

    def _run_command(self, line: str) -> None:
        """Run the command in `line`. Raises BadInputError for an unknown command."""
        name, _, rest = line.partition(" ")
        name, rest = _QUIT[0] if name in _QUIT else name, rest.strip()
        known = {entry.split()[0]: entry for entry in _COMMANDS}
        if name not in known:
            raise BadInputError(
                f"unknown command {name}",
                expected=", ".join(known),
                remedy=did_you_mean(name, known, otherwise="see /help; a space before the / makes it a message"),
            )
        functions: dict[str, Callable[[str], None]] = {
            "/help": lambda _: _print("\n".join(f"{entry:18} {text}" for entry, text in _COMMANDS.items())),
            "/reset": lambda _: self._reset(),
            "/system": self._set_system,
            "/undo": lambda _: self._undo(),
            "/save": self._save,
            "/set": self._set,
            "/quit": _reject_text_after_quit,
        }
        functions[name](rest)

    def _reset(self) -> None:
        self._conversation.reset()
        _print_notice("new conversation")

    def _undo(self) -> None:
        if not self._conversation.undo():
            raise BadInputError(
                "/undo without a previous turn", expected="a turn to remove", remedy="send a message first"
            )
        _print_notice(f"{len(self._conversation.turns)} turns are left")

    def _set_system(self, text: str) -> None:
        self._check_template("/system")
        self._conversation.system = text or None
        _print_notice("system message set" if text else "no system message")

    def _save(self, name: str) -> None:
        if not name:
            raise BadInputError(
                "/save without a file", expected="the name of a file after it", remedy="e.g. /save talk.jsonl"
            )
        lines = self._conversation.lines()
        write_atomically(Path(name), "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
        _print_notice(f"{name}: {len(lines)} messages")

    def _set(self, rest: str) -> None:
        options = option_flags()
        if not rest:
            values = self._resolved.options
            _print("\n".join(f"{name:24} {values[name]}" for name in OPTIONS))
            return
        name, _, value = rest.partition(" ")
        name = option_name(name)
        if name not in options or not value.strip():
            raise BadInputError(
                f"/set {rest}",
                expected="a decoding option and its value",
                remedy=did_you_mean(name, form="/set NAME VALUE", otherwise="/set alone lists the options"),
            )
        parsed = _parsed(options[name], value.strip())
        overrides = {**self._overrides, **parsed}
        resolved = self._decoder.resolve(GenerationConfig.from_mapping(overrides))
        check_effects(parsed, resolved.options)
        self._overrides, self._resolved = overrides, resolved
        _print_notice(f"{name} {getattr(self._resolved.config, name)}")

    def _check_template(self, what: str) -> None:
        if not self._has_template:
            raise BadInputError(
                f"{what}, but {self._decoder.bundle.path} has no chat template",
                expected="a bundle with a chat template",
                remedy="write it into the message itself, or give a template: --chat-template FILE",
            )


def _parsed(option: click.Option, value: str) -> dict[str, Any]:
    """Return the option's name and its value parsed from `value`. Raises BadInputError for an invalid value."""
    assert option.name is not None
    with contextlib.suppress(click.BadParameter):
        return config_overrides({option.name: value_of_flag(option, value)})
    raise BadInputError(
        f"/set {option.name} {value}",
        expected=str(option.help),
        remedy="correct the value",
    )


def _reject_text_after_quit(text: str) -> None:
    raise BadInputError(f"/quit {text}", expected="/quit alone", remedy="remove the text after it")


def _print(text: str) -> None:
    """Print the output of a command to standard error, since standard output holds only answers."""
    click.echo(text, err=True)


def _print_notice(text: str) -> None:
    """Print a notice about the conversation, dimmed if the terminal has colours. With --quiet, print nothing."""
    if not quiet():
        click.secho(f"({text})", err=True, dim=True)


@click.command(
    name="chat",
    cls=DecodingCommand,
    examples=(
        "lopa-export chat BUNDLE",
        "lopa-export chat BUNDLE --temperature 0.7 --max-new-tokens 64",
        "lopa-export chat BUNDLE --chat-template TEMPLATE.jinja --system 'Answer briefly.'",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@option("--system", metavar="TEXT", group=INPUT, help="System message, e.g. how the model should answer.")
@chat_template_option
@device_options
@config_options
def command(
    bundle: Path,
    system: str | None,
    chat_template: str | None,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
    **config_values: Any,
) -> int:
    """Talk with the model of BUNDLE. Every line is a message, and the answer is printed as it is generated.

    A message continues on the next line if its line ends in a backslash. A line that begins with / is a command; /help
    lists the commands. Ctrl-C stops an answer. At the prompt, Ctrl-C twice, Ctrl-D or /quit ends the program.

    If standard input is not a terminal, every line is answered and no prompt is shown. The exit code is then 2 if any
    line was rejected.

    The conversation is formatted by the chat template, the bundle's or that of --chat-template. Without a template, as
    in the bundle of the embedded toy model, each message is continued as plain text, on its own. When a conversation
    exceeds the model's positions, its oldest turns are dropped with a notice.
    """
    if on_mpi(devices):
        raise click.UsageError("chat runs in one process: use generate under mpirun")
    with open_decoder(
        bundle, devices, threads=threads, device_timeout=device_timeout, chat_template=chat_template
    ) as decoder:
        session = ChatSession(decoder, checked_overrides(config_values, decoder.resolve), Conversation(system))
        return session.run(ChatInput())
