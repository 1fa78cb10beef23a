"""The subcommands of lopa-export: which there are, in the order of use, and the help that lists them.

Each lies in the file of its name in its group's room, which is imported when the command is asked for.
"""

import difflib
import importlib
import importlib.util

import click

from lopa.cli.program.folder_type import FOLDER
from lopa.cli.program.signals import Signals
from lopa.cli.program.verbosity import with_verbosity

# Group -> subcommand -> what it does, in words that need no glossary.
GROUPS = {
    "Try": {
        "demo": "Export, check and run the embedded toy model, in one go.",
        "doctor": "Say what this install can do, what to install for the rest, and which device is fastest.",
    },
    "Make": {
        "onnx": "Turn a checkpoint into a bundle: one folder with the ONNX graph, weights and tokenizer.",
        "verify": "Check that a bundle is whole and computes what its checkpoint says.",
        "inspect": "Show what is in a bundle.",
        "edit": "Change a bundle's defaults of decoding or its chat template.",
        "triton": "Add a bundle to a model repository of NVIDIA's Triton Inference Server.",
    },
    "Decode": {
        "generate": "Answer one prompt, or a file of prompts.",
        "chat": "Talk with the model of a bundle.",
        "serve": "Answer over HTTP, as OpenAI's API does.",
    },
    "Compile for accelerators": {
        "plan": "Choose the few input shapes that an engine is compiled for.",
        "tensorrt": "Compile an engine for this machine's NVIDIA GPU.",
        "ascend": "Compile an engine for Ascend NPUs.",
    },
    "Measure": {
        "bench": "Measure quality, speed, cost of a forward, start-up and scaling.",
        "questions": "Write questions with right answers, for bench --quality.",
        "simulate": "Say how a fleet of servers would do under load, from recorded decodes and costs.",
    },
    "Set up": {
        "completion": "Print the script that lets a shell complete commands and options.",
    },
}
# Group -> the room of its commands, lopa.cli.ROOM; a command's module has its name.
_ROOMS = {
    "Try": "start",
    "Make": "make",
    "Decode": "decode",
    "Compile for accelerators": "compile",
    "Measure": "measure",
    "Set up": "start",
}
COMMANDS = {name: f"lopa.cli.{_ROOMS[group]}.{name}" for group, commands in GROUPS.items() for name in commands}

EXPORT_COMMANDS = ("demo", "onnx")
"""They need the libraries of the extra `export`, and are listed last where one of these is absent."""
EXPORT_MODULES = ("torch", "transformers", "safetensors", "onnx", "onnx_ir", "onnxscript")

_EXAMPLES = (
    "lopa-export demo",
    "lopa-export onnx CHECKPOINT -o BUNDLE --lora ADAPTER",
    'lopa-export generate BUNDLE "What is a diffusion language model?"',
)
_EXIT_CODES = (
    ("0", "done"),
    ("1", "a check failed (verify, inspect --lint)"),
    ("2", "bad usage or bad input, or the operating system refused something"),
    ("3", "a library or a device is missing, or a device failed"),
    ("70", "an unexpected error: a bug of lopa-export"),
    ("130", "interrupted by Ctrl-C (143: by SIGTERM)"),
    ("141", "the reader of the output went away"),
)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        unusable = unusable_commands()
        return [name for name in COMMANDS if name not in unusable]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        for parameter in command.params:
            if isinstance(parameter, click.Argument) and isinstance(parameter.type, click.Path):
                parameter.type = FOLDER  # bundles and checkpoints: completed as folders
        return with_verbosity(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=3, cutoff=0.5)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        found = super().resolve_command(ctx, args)
        signals = ctx.find_object(Signals)
        if signals is not None:
            signals.end_the_work()  # its module is imported, and from here on there is something to close
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        unusable = unusable_commands()
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), text) for name, text in commands.items() if name not in unusable]
                )
        if unusable:
            from lopa.runtime.install_hint import pip_install  # not quick to import

            with formatter.section("Need libraries that are not installed"):
                texts = {name: text for commands in GROUPS.values() for name, text in commands.items()}
                formatter.write_dl([(name.ljust(width), texts[name]) for name in unusable])
                formatter.write_paragraph()
                formatter.write_text(f"To install them: {pip_install('export')}")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Examples"):
            for example in _EXAMPLES:
                if example.split()[1] not in unusable_commands():
                    formatter.write_text(example)
        with formatter.section("Exit codes"):
            formatter.write_dl(_EXIT_CODES)
        formatter.write_paragraph()
        formatter.write_text(
            "lopa-export COMMAND --help describes a command; docs/reference/glossary.md explains the words, and "
            "docs/reference/commands.md what all commands have in common."
        )


def unusable_commands() -> tuple[str, ...]:
    """Return the commands whose libraries are not installed. Imports none of them."""
    return () if all(map(_is_installed, EXPORT_MODULES)) else EXPORT_COMMANDS


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a finder that refuses it; a module that is set to None
        return False


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="lopa-export")  # from the metadata: lopa.runtime is not quick to import
def cli() -> None:
    """Export D2F diffusion language models to ONNX, and decode them with LoPA, without torch.

    D2F models fill in many words of an answer at a time, block by block; LoPA tries several ways to go on in each pass
    through the model (a forward) and keeps the best, so that an answer takes fewer passes.
    """


with_verbosity(cli)
