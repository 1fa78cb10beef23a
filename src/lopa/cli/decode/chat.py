"""lopa-export chat: a conversation with the model of a bundle, on a terminal or line by line."""

from pathlib import Path
from typing import Any

import click

from lopa.cli.decode.chat_room import ChatRoom
from lopa.cli.decode.conversation import Conversation
from lopa.cli.decode.typed_lines import TypedLines
from lopa.cli.options.chat_template import chat_template_option
from lopa.cli.options.config import config_options, config_overrides
from lopa.cli.options.devices import device_options
from lopa.cli.program.grouped_command import GroupedCommand
from lopa.runtime.decoder import Decoder
from lopa.runtime.mpi.link import on_mpi


@click.command(name="chat", cls=GroupedCommand)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation, e.g. how to answer.")
@chat_template_option
@device_options
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine [default: its own choice].")
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
    """Talk with the model of BUNDLE: every line is a message, and the answer is printed as it is committed.

    A message goes on in the next line when its line ends in a backslash. A line that begins with / is a command; /help
    lists them. Ctrl-C stops an answer; at the prompt, Ctrl-C twice, Ctrl-D or /quit ends. On standard input that is
    no terminal every line is answered and no prompt is shown; the exit code is then 2 if any line was refused.

    The conversation is put into the chat template, the bundle's or that of --chat-template. Without one, as in the
    bundle of the embedded toy model, each message is continued as plain text, on its own. When a conversation outgrows
    the model's positions, its oldest turns are forgotten, and you are told.
    """
    if on_mpi(devices):
        raise click.UsageError("chat runs in one process: use generate under mpirun")
    with Decoder.open(
        bundle, devices, threads=threads, device_timeout=device_timeout, chat_template=chat_template
    ) as decoder:
        room = ChatRoom(decoder, config_overrides(config_values), Conversation(system))
        return room.run(TypedLines())
