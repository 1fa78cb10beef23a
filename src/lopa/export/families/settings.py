"""Entries of config.json that select a network other than the exported one."""

from collections.abc import Callable, Collection
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


def check_settings(config: JsonValues, settings: tuple[Setting, ...], reads: Collection[str]) -> None:
    """Raise BadInputError for the first entry of `config` that selects another network.

    The family's `settings` and the entries that it `reads` replace the settings of all families with the same names.
    """
    own = {*reads, *(setting.name for setting in settings)}
    for setting in (*settings, *(each for each in FOR_ALL_FAMILIES if each.name not in own)):
        value = config.values.get(setting.name)
        if (value is None and setting.needed) or (value is not None and not setting.is_supported(value)):
            raise BadInputError(
                f"{config.source} has {setting.name} = {shown(value)}",
                expected=setting.has,
                remedy="export a checkpoint without this setting; it is not supported",
            )


def rope_settings(*, partial: bool) -> tuple[Setting, ...]:
    """Return settings for plain rotary positions in rope_scaling and rope_parameters.

    With `partial` they may rotate a part of each head.
    """
    neutral: dict[str, object] = {"rope_type": "default", "type": "default", "factor": 1, "partial_rotary_factor": 1}
    read = ("rope_theta", "partial_rotary_factor") if partial else ("rope_theta",)

    def is_supported(rope: object) -> bool:
        return isinstance(rope, dict) and all(
            value is None or name in read or value == neutral.get(name) for name, value in rope.items()
        )

    return tuple(Setting(name, _ROPE, is_supported) for name in ("rope_scaling", "rope_parameters"))


def _are_full(kinds: object) -> bool:
    """Return True if layer_types is a list of full attention only."""
    return isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)


_ROPE = "unscaled rotary positions over whole heads"
_ATTENTION = "attention over all positions in every layer, without a sliding window"
_BLOCKS = "attention to later positions; Uno and I-DLM are causal and predict the next position"
_MLP = "one MLP per layer, no mixture of experts"
FOR_ALL_FAMILIES = (
    fixed("hidden_act", "silu", "swish", has="hidden_act silu"),
    *rope_settings(partial=False),
    fixed("partial_rotary_factor", 1, 1.0, has=_ROPE),
    fixed("use_sliding_window", False, has=_ATTENTION),
    Setting("layer_types", _ATTENTION, _are_full),
    *(
        fixed(name, 0, has=_MLP)
        for name in (
            *("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
            *("num_shared_experts", "n_shared_experts"),
        )
    ),
    *(fixed(name, False, has=_BLOCKS) for name in ("is_causal", "use_regular_causal")),
    *(fixed(name, False, has="a decoder alone") for name in ("is_encoder_decoder", "add_cross_attention")),
    fixed("pruned_heads", {}, has="all heads"),
    *(fixed(name, has="uncapped scores") for name in ("attn_logit_softcapping", "final_logit_softcapping")),
    *(fixed(f"{name}_multiplier", 1, 1.0, has="no multipliers") for name in ("embedding", "attention", "residual")),
    fixed("logits_scaling", 1, 1.0, has="unscaled logits"),
    fixed(
        "transformers_weights", "model.safetensors", "model.safetensors.index.json", has="weights by their usual name"
    ),
)
"""Settings of all families. LLaDA-MoE has the model_type of LLaDA, and only its experts distinguish them."""
