"""The commands of lopa-export, in the order of use, and the help that lists them.

The module of a command has its name and is in the package of its group. It is imported when the command is requested.
"""

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
_PACKAGES = ("start", "make", "decode", "compile", "measure", "start")
"""Packages below lopa.cli with the commands of each group."""
_OTHER_NAMES = {
    **dict.fromkeys(("export", "convert"), "onnx"),
    "quantize": "onnx CHECKPOINT -o BUNDLE --quantize int8",
    **dict.fromkeys(("run", "infer", "predict", "decode", "complete"), "generate"),
    **dict.fromkeys(("info", "show"), "inspect"),
    **dict.fromkeys(("build", "compile", "trtexec"), "tensorrt"),
    **dict.fromkeys(("benchmark", "eval"), "bench"),
    "upload": "push",
    "infill": "fill",
    "score": "generate BUNDLE PROMPT --choices ANSWER --choices ANSWER",
    "plot": "bench quality BUNDLE EVAL --plot FILE",
}
"""Commands by the names that other programs have for them."""
COMMANDS = {
    name: f"lopa.cli.{package}.{name}"
    for package, commands in zip(_PACKAGES, GROUPS.values(), strict=True)
    for name in commands
}

_EXAMPLES = (
    "lopa-export demo",
    "lopa-export onnx CHECKPOINT -o BUNDLE --lora ADAPTER",
    'lopa-export generate BUNDLE "What is a diffusion model?"',
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
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl(_EXIT_CODES)
        formatter.write_paragraph()
        formatter.write_text(
            "lopa-export COMMAND --help describes a command. docs/reference/glossary.md explains the terms, "
            "docs/reference/commands.md what all commands have in common."
        )


@click.group(
    cls=_Commands,
    modules=COMMANDS,
    groups=GROUPS,
    other_names=_OTHER_NAMES,
    examples=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="lopa-export")  # from the metadata, since lopa.runtime is slow to import
def cli() -> None:
    """Export diffusion language models to ONNX, and decode them with LoPA, without torch.

    These models unmask many tokens of an answer at a time, block by block. LoPA verifies several lookahead branches in
    each pass through the model (a forward) and keeps the best, so that an answer takes fewer forwards.
    """
