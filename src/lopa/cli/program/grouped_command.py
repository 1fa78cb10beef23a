"""A command whose help lists its options in named groups: what goes in and out, devices, decoding."""

import click

from lopa.runtime.generation_config import OPTIONS

_GROUPS = ("Input and output", "Device", "Decoding", "Other")
_DEVICE = {"devices", "device_timeout", "threads", "parallel"}
_OTHER = {"--quiet", "--verbose", "--help"}
_DECODING = {"defaults", *OPTIONS}


class GroupedCommand(click.Command):
    """An option that is a field of GenerationConfig is about decoding; whatever is not known is input or output."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of a group under its title."""
        records: dict[str, list[tuple[str, str]]] = {group: [] for group in _GROUPS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                records[_group_of_option(parameter)].append(record)
        for group, found in records.items():
            if found:
                with formatter.section(group):
                    formatter.write_dl(found)


def _group_of_option(option: click.Option) -> str:
    if option.name in _DEVICE:
        return "Device"
    if option.name in _DECODING:
        return "Decoding"
    return "Other" if _OTHER & set(option.opts) else "Input and output"
