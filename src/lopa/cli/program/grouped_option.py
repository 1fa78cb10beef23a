"""Options of the command line with a group for the help and a level: basic or advanced."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

_Command = TypeVar("_Command", bound=Callable[..., Any])

INPUT, OUTPUT, DEVICE = "Input", "Output", "Device"
PLAIN, OTHER = "Options", "Other"
"""Group of options without a group, and group of --help, --quiet and --verbose."""


class GroupedOption(click.Option):
    """An option that the help lists in `group`. Only --help-all lists it if it is advanced.

    Its default is always shown. A text as `show_default` describes a default that is not a value of the option.
    """

    def __init__(self, *args: Any, group: str = PLAIN, advanced: bool = False, **attributes: Any) -> None:
        super().__init__(*args, **{"show_default": True, **attributes})
        self.group = group
        self.advanced = advanced

    def get_help_extra(self, ctx: click.Context) -> "OptionHelpExtra":
        """Return the text that click appends to the help text, without the parentheses around a described default."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


def option(*names: str, **attributes: Any) -> Callable[[_Command], _Command]:
    """Return the decorator that adds a GroupedOption, with click.option's arguments, `group` and `advanced`."""
    return click.option(*names, cls=GroupedOption, **attributes)
