"""Entries of config.json that select a network other than the exported one."""

from collections.abc import Callable
from dataclasses import dataclass

from lopa.export.json_file import JsonValues, shown
from lopa.runtime.errors import BadInputError


@dataclass(frozen=True)
class Setting:
    """One entry, and the values that the exported network supports."""

    name: str
    has: str
    """Property of the exported network, for the error."""
    is_supported: Callable[[object], bool]
    needed: bool = False
    """True if an absent entry or null means another network."""


def fixed(name: str, *values: object, has: str, needed: bool = False) -> Setting:
    """Return a setting that must equal one of `values` in value and type (0 is not false)."""
    return Setting(name, has, lambda found: any(type(found) is type(each) and found == each for each in values), needed)


def read_by_family(*names: str) -> tuple[Setting, ...]:
    """Return settings for entries of which the family supports several values. Its `sizes` reads and checks them."""
    return tuple(Setting(name, "a supported value", lambda _: True) for name in names)


def check_settings(config: JsonValues, settings: tuple[Setting, ...]) -> None:
    """Raise BadInputError for the first entry of `config` that selects another network.

    The family's `settings` replace the settings of all families with the same names.
    """
    own = {setting.name for setting in settings}
    for setting in (*settings, *(each for each in _FOR_ALL_FAMILIES if each.name not in own)):
        value = config.values.get(setting.name)
        if (value is None and setting.needed) or (value is not None and not setting.is_supported(value)):
            raise BadInputError(
                f"{config.source} has {setting.name} = {shown(value)}",
                expected=setting.has,
                remedy="export a checkpoint without this setting; it is not supported",
            )


def _is_unscaled(rope: object) -> bool:
    """Return True if rope_scaling, or rope_parameters in newer files, selects plain rotary positions."""
    return (
        isinstance(rope, dict)
        and rope.get("rope_type", rope.get("type", "default")) == "default"
        and rope.get("partial_rotary_factor", 1) == 1
    )


def _are_full(kinds: object) -> bool:
    """Return True if layer_types is a list of full attention only."""
    return isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)


_ROPE = "unscaled rotary positions over whole heads"
_ATTENTION = "attention over all positions in every layer, without a sliding window"
_MLP = "one MLP per layer, no mixture of experts"
_FOR_ALL_FAMILIES = (
    fixed("hidden_act", "silu", has="hidden_act silu"),
    Setting("rope_scaling", _ROPE, _is_unscaled),
    Setting("rope_parameters", _ROPE, _is_unscaled),
    fixed("partial_rotary_factor", 1, 1.0, has=_ROPE),
    fixed("use_sliding_window", False, has=_ATTENTION),
    Setting("layer_types", _ATTENTION, _are_full),
    *(
        fixed(name, 0, has=_MLP)
        for name in ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok")
    ),
    fixed("moe_intermediate_size", 0, has=_MLP),
)
"""Settings of all families. LLaDA-MoE has the model_type of LLaDA, and only its experts distinguish them."""
