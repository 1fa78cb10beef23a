"""Measurements and checks for developers, by name.

Usage: python -m tools.measure NAME [options]

`python -m tools.measure` lists the names. `python -m tools.measure NAME --help` describes one. User-facing measurements
are in `lopa-export bench`.
"""

import importlib

import click

from tools.report import exit_on_error

MEASUREMENTS = {
    "grammar": ("tools.reports.grammar", "Decode with random schemas, and measure the cost of grammars."),
    "path": ("tools.reports.path_trace", "Count the files and functions that one prompt passes through."),
    "step": ("tools.reports.step_trace", "Count the calls and files of a decoding step."),
    "host": ("tools.reports.host_time", "Measure a decoding step without its forward."),
    "kernels": ("tools.reports.kernel_rates", "Measure the CPU's kernels beside ONNX Runtime's and the limits."),
    "precisions": ("tools.reports.precisions", "Compare number formats by recorded tokens and by answers."),
    "fleet": ("tools.fleet", "Estimate how many servers a load needs, by simulation."),
    "soak": ("tools.serving.soak", "Send thousands of requests to a server and check each answer."),
    "fuzz": ("tools.fuzz.run", "Mutate every input that a user can provide."),
    "gpu": ("tools.gpu.report", "Run all measurements on a machine with a GPU."),
}
"""Module with a click command `main`, and the help text, by name."""


class Registry(click.Group):
    """Click group that imports a command when it runs, because some need torch or take seconds to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the measurements."""
        return list(MEASUREMENTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command, or None for an unknown name."""
        if cmd_name not in MEASUREMENTS:
            return None
        command: click.Command = importlib.import_module(MEASUREMENTS[cmd_name][0]).main
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing any."""
        with formatter.section("Measurements"):
            formatter.write_dl([(name, text) for name, (_, text) in MEASUREMENTS.items()])


main = Registry(help="Measurements and checks for developers.")

if __name__ == "__main__":
    with exit_on_error():
        main()
