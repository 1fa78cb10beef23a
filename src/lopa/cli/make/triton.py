"""lopa-export triton: adds a bundle to a model repository of NVIDIA's Triton Inference Server."""

from pathlib import Path
from typing import Any

import click

from lopa.cli.options.server_settings import setting_options
from lopa.cli.program.grouped_command import DEVICE, OUTPUT, GroupedCommand, option
from lopa.serve.server_settings import ServerSettings
from lopa.serve.triton.config_text import SETTINGS, parameters_from_settings
from lopa.serve.triton.groups import groups_from_devices
from lopa.serve.triton.repository import write_model


@click.command(
    name="triton",
    cls=GroupedCommand,
    examples=(
        "lopa-export triton BUNDLE -o REPOSITORY --model tiny",
        "lopa-export triton BUNDLE -o REPOSITORY --model linked --link --device cpu --instances 2 --max-num-seqs 4",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="REPOSITORY",
    group=OUTPUT,
    help="Model repository: a new or empty folder, or one with other models.",
)
@option("--model", metavar="NAME", group=OUTPUT, show_default="name of BUNDLE", help="Name of the model for clients.")
@option("--link", is_flag=True, group=OUTPUT, help="Refer to BUNDLE by its path instead of copying it.")
@option(
    "--python-path",
    metavar="FOLDERS",
    group=OUTPUT,
    show_default="Triton's own",
    help="Folders, separated by colons, where Triton's Python finds lopa.",
)
@option(
    "--device",
    "devices",
    multiple=True,
    default=("cpu",),
    group=DEVICE,
    help="Devices of one engine, separated by commas, e.g. cuda:0,cuda:1. Each --device makes an instance group.",
)
@option(
    "--instances",
    type=int,
    default=1,
    group=DEVICE,
    help="Number of engines per instance group, each in its own process.",
)
@setting_options(*SETTINGS)
def command(
    bundle: Path,
    output: Path,
    model: str | None,
    link: bool,
    devices: tuple[str, ...],
    instances: int,
    python_path: str | None,
    **given: Any,
) -> None:
    """Add BUNDLE to a model repository of NVIDIA's Triton Inference Server (docs/how-to/deploy.md).

    The options of each engine are written to config.pbtxt, where they can be changed.
    """
    settings = ServerSettings(**given)
    groups = groups_from_devices(devices, instances)
    folder = write_model(
        output,
        bundle.resolve().name if model is None else model,
        bundle,
        groups=groups,
        parameters=parameters_from_settings(settings),
        python_path=python_path,
        link=link,
    )
    engines = ", ".join(f"{each.count * (len(each.gpus) or 1)} on {_where(each.devices, each.gpus)}" for each in groups)
    click.echo(f"{folder}: engines: {engines}; tritonserver --model-repository={output}")


def _where(devices: str, gpus: tuple[int, ...]) -> str:
    return f"{devices}:{','.join(map(str, gpus))}" if gpus else devices
