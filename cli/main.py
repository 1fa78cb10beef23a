"""The command lopa-export. Each subcommand lies in the file of its name and is imported when it is asked for."""

import importlib
import sys

import click

from lopa.runtime.errors import LopaError

# Subcommand -> module with a click command named `command`, in the order of a user's work.
COMMANDS = {
    "demo": "lopa.cli.demo",
    "onnx": "lopa.cli.onnx",
    "verify": "lopa.cli.verify",
    "plan": "lopa.cli.plan",
    "tensorrt": "lopa.cli.tensorrt",
    "ascend": "lopa.cli.ascend",
    "inspect": "lopa.cli.inspect",
    "generate": "lopa.cli.generate",
    "bench": "lopa.cli.bench",
    "doctor": "lopa.cli.doctor",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="lopa-export")
def cli() -> None:
    """Export D2F diffusion language models to ONNX and decode them with LoPA, without torch.

    Exit codes: 0 done, 1 a check failed, 2 bad usage or bad input, 3 a missing library or device.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run lopa-export and exit with its code; every error is one message on standard error, never a traceback."""
    try:
        sys.exit(cli.main(arguments, prog_name="lopa-export", standalone_mode=False) or 0)
    except LopaError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (| head); what is left to flush has nowhere to go.
        sys.stderr.close()
        sys.exit(141)


if __name__ == "__main__":
    main()
