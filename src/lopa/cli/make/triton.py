"""lopa-export triton: a bundle becomes a model in a model repository of NVIDIA's Triton Inference Server."""

from pathlib import Path

import click

from lopa.cli.program.grouped_command import GroupedCommand
from lopa.runtime.engine import MAX_NUM_SEQS, QUEUE_LIMIT
from lopa.runtime.parallel.branch_session import STALL_SECONDS
from lopa.serve.triton.groups import groups_of_devices
from lopa.serve.triton.repository import write_model
from lopa.serve.triton.settings import TritonSettings, parameters_of_settings


@click.command(name="triton", cls=GroupedCommand)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="REPOSITORY",
    help="The model repository: a new folder, an empty one, or one with other models.",
)
@click.option("--model", metavar="NAME", help="What clients call the model [default: the bundle's folder].")
@click.option("--link", is_flag=True, help="Refer to BUNDLE by its path instead of copying it.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    default=("cpu",),
    show_default=True,
    help="Devices of an engine as generate has them, several as cuda:0,cuda:1. Each --device: an instance group.",
)
@click.option(
    "--device-timeout",
    type=float,
    default=STALL_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="With several devices of one engine: give up one that takes longer for a forward.",
)
@click.option("--instances", type=int, default=1, show_default=True, help="Engines of each group, a process each.")
@click.option("--threads", type=int, help="Threads of each engine [default: its own choice].")
@click.option(
    "--max-num-seqs", type=int, default=MAX_NUM_SEQS, show_default=True, help="Requests that an engine runs at once."
)
@click.option("--queue", type=int, default=QUEUE_LIMIT, show_default=True, help="Requests that may wait beside them.")
@click.option("--max-tokens", type=int, help="Most tokens of an answer [default: what the model has room for].")
@click.option("--max-branches", type=int, help="Most branches of a request [default: as many as there may be].")
@click.option("--max-seconds", type=float, help="Most seconds of a request, waiting included [default: no limit].")
@click.option("--python-path", metavar="FOLDERS", help="Where Triton's Python finds lopa, with : between several.")
def command(
    bundle: Path,
    output: Path,
    model: str | None,
    link: bool,
    devices: tuple[str, ...],
    device_timeout: float,
    instances: int,
    threads: int | None,
    max_num_seqs: int,
    queue: int,
    max_tokens: int | None,
    max_branches: int | None,
    max_seconds: float | None,
    python_path: str | None,
) -> None:
    """Add BUNDLE to a model repository of NVIDIA's Triton Inference Server (docs/triton.md).

    What is said here stands in config.pbtxt, where it can be changed.
    """
    settings = TritonSettings(
        max_num_seqs=max_num_seqs,
        queue_limit=queue,
        threads=threads,
        device_timeout=device_timeout,
        max_tokens=max_tokens,
        max_branches=max_branches,
        max_seconds=max_seconds,
    )
    groups = groups_of_devices(devices, instances)
    folder = write_model(
        output,
        bundle.resolve().name if model is None else model,
        bundle,
        groups=groups,
        parameters=parameters_of_settings(settings),
        python_path=python_path,
        link=link,
    )
    told = ", ".join(f"{each.count * (len(each.gpus) or 1)} on {_where(each.devices, each.gpus)}" for each in groups)
    click.echo(f"{folder}: engines: {told}; tritonserver --model-repository={output}")


def _where(devices: str, gpus: tuple[int, ...]) -> str:
    return f"{devices}:{','.join(map(str, gpus))}" if gpus else devices
