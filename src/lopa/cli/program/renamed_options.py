"""Former names of options, which work for one more minor version with a warning on standard error."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, cast

import click

from lopa.runtime.plan.renamed_options import RENAMED_OPTIONS

RENAMED_FLAGS: Mapping[str, str] = {
    **{former.replace("_", "-"): present.replace("_", "-") for former, present in RENAMED_OPTIONS.items()},
    "slots": "max-num-seqs",
    "gears": "buckets",
    "build-seconds-per-gear": "build-seconds-per-bucket",
}
"""Present name of an option by its former name, without the leading dashes. The runtime lists the decoding options."""


def former_options(parameters: list[click.Parameter]) -> Iterator[click.Option]:
    """Yield a hidden option for every former name of an option in `parameters`."""
    for parameter in parameters:
        for former, present in RENAMED_FLAGS.items():
            if isinstance(parameter, click.Option) and f"--{present}" in parameter.opts:
                yield FormerOption(former, present, parameter)


class FormerOption(click.Option):
    """The former name of an option. Its value becomes the value of the present option."""

    def __init__(self, former: str, present: str, option: click.Option) -> None:
        names = f"--{former}/--no-{former}" if option.secondary_opts else f"--{former}"
        kind: dict[str, Any] = (
            {} if option.is_flag else {"type": option.type, "multiple": option.multiple, "nargs": option.nargs}
        )
        super().__init__(
            [names, f"former_{former.replace('-', '_')}"],
            is_flag=option.is_flag,
            default=None,
            hidden=True,
            is_eager=True,  # before the present option takes its value
            expose_value=False,
            **kind,
        )
        self.option = option
        self.former, self.present = former, present

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Pass the value to the present option, unless that option is given too."""
        if self.name in opts:
            values = cast("dict[str, Any]", opts)
            value = values.pop(self.name)
            values.setdefault(self.option.name, value)
            if not ctx.resilient_parsing:
                warn_of_former_name(f"--{self.former}", f"--{self.present}")
        return None, args


def present_option_name(text: str) -> str:
    """Return the current field of GenerationConfig for a name that a user typed, with a warning for a former name."""
    name = text.strip().removeprefix("--").replace("-", "_")
    if name in RENAMED_OPTIONS:
        warn_of_former_name(name, RENAMED_OPTIONS[name])
    return RENAMED_OPTIONS.get(name, name)


def present_variable(former: str, present: str) -> str:
    """Return the environment variable to read: `former`, with a warning, if only that one is set."""
    if os.environ.get(former) and not os.environ.get(present):
        warn_of_former_name(former, present)
        return former
    return present


def warn_of_former_name(former: str, present: str) -> None:
    """Write on standard error that `former` is now called `present`."""
    click.echo(f"warning: {former} is deprecated; use {present}", err=True)
