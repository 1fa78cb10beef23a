"""Measurements and checks for developers, by name.

Usage: python -m tools.measure NAME [options]

`python -m tools.measure` lists the names; `python -m tools.measure NAME --help` describes one. What users measure is in
`lopa-export bench`.
"""

import importlib

import click

from tools.shown_errors import errors_shown

MEASUREMENTS = {
    "conformance": ("tools.reports.conformance", "Decode the recorded prompts of published implementations again."),
    "strategies": ("tools.strategy_recordings", "Make recorded decisions of published strategies again."),
    "speculative": ("tools.reports.speculative", "Compare exact speculative decodes with plain ones."),
    "grammar": ("tools.reports.grammar", "Decode by random schemas, and time what a grammar costs."),
    "load": ("tools.serving.load", "Time servers beside an engine in this process."),
    "soak": ("tools.serving.soak", "Send thousands of requests to a server and check each answer."),
    "fuzz": ("tools.fuzz.run", "Mutate everything that a user can hand over."),
    "peers": ("tools.peers.__main__", "Time forwards beside llama.cpp, OpenVINO and torch."),
    "gpu": ("tools.gpu.report", "Measure everything on a machine with a GPU."),
}
"""Module, whose `main` is a click command, and what it reports."""


class Registry(click.Group):
    """A group whose commands are imported when they are run: some need torch, some take seconds to load."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names."""
        return list(MEASUREMENTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one measurement."""
        if cmd_name not in MEASUREMENTS:
            return None
        command: click.Command = importlib.import_module(MEASUREMENTS[cmd_name][0]).main
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the names without importing any."""
        with formatter.section("Measurements"):
            formatter.write_dl([(name, text) for name, (_, text) in MEASUREMENTS.items()])


main = Registry(help="Measure or check something of this project.")

if __name__ == "__main__":
    with errors_shown():
        main()
