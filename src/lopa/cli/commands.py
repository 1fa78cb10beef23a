"""The commands of lopa-export, in the order of use, and the help that lists them.

The module of a command has its name and is in the package of its group. It is imported when the command is requested.
"""

import importlib.util

import click

from lopa.cli.program.lazy_group import LazyGroup

GROUPS = {
    "Try": {
        "demo": "Export, check and run the embedded toy model.",
        "doctor": "Show what this install can do, how to install the rest, and which device is fastest.",
    },
    "Make": {
        "onnx": "Turn a checkpoint into a bundle: one folder with the ONNX graph, weights and tokenizer.",
        "verify": "Check that a bundle is complete and computes what its checkpoint computes.",
        "inspect": "Show the contents of a bundle.",
        "edit": "Change the decoding defaults or the chat template of a bundle.",
        "sign": "Sign a bundle with a key or a certificate.",
        "page": "Write a web page that decodes a bundle in the browser, without a server.",
        "push": "Upload a bundle to the Hugging Face Hub.",
        "triton": "Add a bundle to a model repository of NVIDIA's Triton Inference Server.",
    },
    "Decode": {
        "generate": "Answer one prompt or a file of prompts.",
        "fill": "Fill the holes of a text, with the text on both sides in view.",
        "chat": "Talk with the model of a bundle.",
        "serve": "Serve a bundle over HTTP with OpenAI's API.",
    },
    "Compile for accelerators": {
        "plan": "Choose the few input shapes that an engine is compiled for.",
        "tensorrt": "Compile an engine for NVIDIA GPUs with TensorRT.",
        "ascend": "Compile an engine for Ascend NPUs.",
        "qnn": "Compile an engine for Qualcomm NPUs.",
    },
    "Measure": {
        "tune": "Find the fastest decoding options of a bundle that keep its score, and save them as presets.",
        "bench": "Measure quality, speed, cost of a forward, start-up and scaling.",
    },
    "Set up": {
        "completion": "Print the script with which a shell completes commands and options.",
    },
}
"""Summaries of the commands by name, in titled groups."""
_PACKAGES = {
    "Try": "start",
    "Make": "make",
    "Decode": "decode",
    "Compile for accelerators": "compile",
    "Measure": "measure",
    "Set up": "start",
}
"""Packages below lopa.cli with the commands of a group, by the group's title."""
COMMANDS = {name: f"lopa.cli.{_PACKAGES[group]}.{name}" for group, commands in GROUPS.items() for name in commands}

EXPORT_COMMANDS = ("demo", "onnx")
"""Commands that need the libraries of the extra `export`. The help lists them last if one of these libraries is
missing.
"""
EXPORT_MODULES = ("torch", "transformers", "safetensors", "onnx", "onnx_ir", "onnxscript")

_EXAMPLES = (
    "lopa-export demo",
    "lopa-export onnx CHECKPOINT -o BUNDLE --lora ADAPTER",
    'lopa-export generate BUNDLE "What is a diffusion language model?"',
)
_EXIT_CODES = (
    ("0", "done"),
    ("1", "a check failed (verify, inspect --lint)"),
    ("2", "bad usage, bad input, or an error of the operating system such as a full disk"),
    ("3", "a library or a device is missing, or a device failed"),
    ("70", "an unexpected error: a bug of lopa-export"),
    ("130", "interrupted by Ctrl-C (143: by SIGTERM)"),
    ("141", "the reader of the output closed the pipe"),
)


class _Commands(LazyGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        unusable = unusable_commands()
        return [name for name in COMMANDS if name not in unusable]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        unusable = unusable_commands()
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), text) for name, text in commands.items() if name not in unusable]
                )
        if unusable:
            from lopa.runtime.install_hint import pip_install  # slow to import

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
            "lopa-export COMMAND --help describes a command. docs/reference/glossary.md explains the terms, "
            "docs/reference/commands.md what all commands have in common."
        )


def unusable_commands() -> tuple[str, ...]:
    """Return the commands whose libraries are not installed, without importing any library."""
    return () if all(map(_is_installed, EXPORT_MODULES)) else EXPORT_COMMANDS


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # an import hook rejects the module, or sys.modules maps it to None
        return False


@click.group(
    cls=_Commands,
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="lopa-export")  # from the metadata, since lopa.runtime is slow to import
def cli() -> None:
    """Export diffusion language models to ONNX, and decode them with LoPA, without torch.

    These models unmask many tokens of an answer at a time, block by block. LoPA verifies several lookahead branches in
    each pass through the model (a forward) and keeps the best, so that an answer takes fewer forwards.
    """
