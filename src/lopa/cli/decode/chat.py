"""lopa-export chat: a conversation with the model of a bundle, on a terminal or line by line."""

from pathlib import Path
from typing import Any

import click

from lopa.cli.decode.chat_input import ChatInput
from lopa.cli.decode.chat_session import ChatSession, Conversation
from lopa.cli.options.decoding_options import DecodingCommand, chat_template_option, config_options, config_overrides
from lopa.cli.options.devices import device_options
from lopa.cli.program.grouped_command import INPUT, option
from lopa.cli.terminal.opening import open_decoder
from lopa.runtime.mpi.mpi_link import on_mpi


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
        session = ChatSession(decoder, config_overrides(config_values), Conversation(system))
        return session.run(ChatInput())
