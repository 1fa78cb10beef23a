"""PEFT LoRA adapters: the tensors of the base that they change, and the changes.

This module reads them from adapter_config.json and adapter_model.safetensors.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa.export.checkpoint.module_patterns import first_matches
from lopa.export.checkpoint.tensors import StoredTensor, tensors_from_file
from lopa.export.families.family import Architecture
from lopa.export.json_file import JsonValues, json_object_from_file, shown
from lopa.runtime.errors import BadInputError

ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_WEIGHTS_NAME = "adapter_model.safetensors"
_KEY_PREFIX = "base_model.model."
_OTHER_BASE = "use the adapter that was trained on this checkpoint"
_SAVE_AGAIN = "save the adapter again, or correct its configuration"
_MAX_CONFIG_BYTES = 2**22
_MAX_NAMES = 10_000
"""Maximum length of a list or table in the configuration. A table may name every module of a network (several hundred).
"""
_MAX_SAVED = 1000
_MIN_ALPHA, _MAX_ALPHA = 1e-6, 1e6
# Settings that change what an adapter computes. Each is off when its value is false, null or empty.
_UNSUPPORTED = (
    "use_dora",
    "lora_bias",
    "fan_in_fan_out",
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "velora_config",
    "monteclora_config",
)
# Initializations that also change the base's weights. The adapter was then trained for a base that the checkpoint
# lacks.
_BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class LowRankProduct:
    """Low-rank update of a matrix [outputs, inputs]: scale * up @ down is added to it."""

    down: StoredTensor
    """Tensor lora_A, [rank, inputs]."""
    up: StoredTensor
    """Tensor lora_B, [outputs, rank]."""
    scale: float


@dataclass(frozen=True)
class Adapter:
    """Changes to the base model, by the names of its tensors."""

    products: dict[str, LowRankProduct]
    replaced: dict[str, StoredTensor]
    """Tensors that were trained as a whole (modules_to_save)."""


NO_ADAPTER = Adapter(products={}, replaced={})


def adapter_from_folder(
    folder: Path, base_shapes: Mapping[str, tuple[int, ...]], architecture: Architecture
) -> Adapter:
    """Read the adapter in `folder` for a base of `architecture` with tensors of `base_shapes`.

    Raises BadInputError for missing or broken files and for unsupported kinds of adapter. Also raises it for the
    adapter of another base, recognized by other shapes, unknown modules or missing tensors.
    """
    path = folder / ADAPTER_CONFIG_NAME
    values = json_object_from_file(
        path, remedy="check the path: a PEFT adapter folder is needed", max_bytes=_MAX_CONFIG_BYTES
    )
    config = JsonValues(values, str(path), _SAVE_AGAIN)
    _check_supported(config, path)
    weights = folder / ADAPTER_WEIGHTS_NAME
    if not weights.is_file():
        raise BadInputError(
            f"{folder} has no {ADAPTER_WEIGHTS_NAME}",
            expected="an adapter saved as safetensors",
            remedy="save it with safe_serialization=True; pickled adapters (.bin) are never opened",
        )
    stored = _by_module_name(weights)
    modules = _target_modules(config, base_shapes, architecture)
    ranks = _by_module(config, "rank_pattern", modules, "r")
    alphas = _by_module(config, "alpha_pattern", modules, "lora_alpha")
    products = {
        f"{module}.weight": _product(module, rank, alpha, config, path, stored, base_shapes)
        for module, rank, alpha in zip(modules, ranks, alphas, strict=True)
    }
    used = {tensor.name.removeprefix(_KEY_PREFIX) for pair in products.values() for tensor in (pair.down, pair.up)}
    replaced = {name: tensor for name, tensor in stored.items() if name not in used}
    for name, tensor in replaced.items():
        _check_replacement(name, tensor, products, base_shapes)
    _check_saved_modules(config, replaced, base_shapes)
    return Adapter(products, replaced)


def _by_module_name(weights: Path) -> dict[str, StoredTensor]:
    """Return the adapter's tensors by their names without PEFT's prefix."""
    tensors = tensors_from_file(weights)
    stored = {name.removeprefix(_KEY_PREFIX): tensor for name, tensor in tensors.items()}
    if len(stored) < len(tensors):
        raise BadInputError(
            f"{weights} has a tensor twice, with and without {_KEY_PREFIX} before its name",
            expected="each tensor once",
            remedy=_SAVE_AGAIN,
        )
    return stored


def _check_supported(config: JsonValues, path: Path) -> None:
    values = config.values
    initialization = values.get("init_lora_weights")
    wrong = [name for name in _UNSUPPORTED if values.get(name)]
    if values.get("peft_type") != "LORA":
        wrong.append("peft_type")
    if values.get("bias", "none") != "none":
        wrong.append("bias")
    if isinstance(initialization, str) and initialization.lower().startswith(_BASE_CHANGING):
        wrong.append("init_lora_weights")
    if wrong:
        raise BadInputError(
            f"{path} has " + ", ".join(f"{name} = {shown(values.get(name))}" for name in wrong),
            expected="a plain LoRA adapter: peft_type LORA, bias none, no DoRA or other extension",
            remedy="merge this adapter with merge_and_unload of peft, save the result and export that without --lora",
        )


def _target_modules(
    config: JsonValues, base_shapes: Mapping[str, tuple[int, ...]], architecture: Architecture
) -> list[str]:
    """Return the names of the base's matrices that the adapter changes."""
    matrices = [
        name.removesuffix(".weight")
        for name, shape in base_shapes.items()
        if len(shape) == 2 and name != architecture.outer_names["embedding.weight"]
    ]
    head = architecture.outer_names["head.weight"].removesuffix(".weight")
    targets, excluded = (_named(config, name, matrices, head) for name in ("target_modules", "exclude_modules"))
    layers = _layers(config)
    found = [
        module
        for module in matrices
        if module in targets and module not in excluded and (not layers or _layer_of(module) in layers)
    ]
    if not found:
        raise BadInputError(
            f"{config.source} has target_modules {shown(config.values.get('target_modules'))}",
            expected="names of linear modules of the checkpoint, such as q_proj",
            remedy=_OTHER_BASE,
        )
    return found


def _named(config: JsonValues, name: str, modules: Sequence[str], head: str) -> frozenset[str]:
    """Return the `modules` that match target_modules or exclude_modules of PEFT, a pattern or a list of endings."""
    names = config.values.get(name)
    if names == "all-linear":
        return frozenset(modules) - {head}
    if isinstance(names, str) and names:
        matches = first_matches([names], modules, source=config.source)
        return frozenset(module for module, match in zip(modules, matches, strict=True) if match is not None)
    if names is not None and not isinstance(names, list | str):
        raise config.error_for(name, names, "a pattern or a list of names")
    endings = frozenset(config.get_strings(name, max_count=_MAX_NAMES) if names else ())
    return frozenset(module for module in modules if not endings.isdisjoint(_endings(module)))


def _endings(module: str) -> list[str]:
    """Return the complete name, and the rest of it after each dot."""
    parts = module.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]


def _layers(config: JsonValues) -> frozenset[int]:
    """Return the numbers of the layers to change; empty for all."""
    name = "layers_to_transform"
    value = config.values.get(name)
    if value is None:
        return frozenset()
    layers = value if isinstance(value, list) else [value]
    return frozenset(config.checked_int(name, layer, min=0) for layer in layers)


def _layer_of(module: str) -> int | None:
    number = re.search(r"\.(\d+)\.", module)
    return int(number[1]) if number else None


def _product(
    module: str,
    rank_value: object,
    alpha_value: object,
    config: JsonValues,
    path: Path,
    stored: Mapping[str, StoredTensor],
    base_shapes: Mapping[str, tuple[int, ...]],
) -> LowRankProduct:
    rank = config.checked_int("r", rank_value)
    alpha = config.checked_float("lora_alpha", alpha_value, min=_MIN_ALPHA, max=_MAX_ALPHA)
    outputs, inputs = base_shapes[f"{module}.weight"]
    pair = []
    for part, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
        name = f"{module}.{part}.weight"
        if name not in stored:
            raise BadInputError(
                f"the adapter {path.parent} has no tensor {name}",
                expected="both LoRA tensors for every module of target_modules that the checkpoint has",
                remedy=_OTHER_BASE,
            )
        if stored[name].shape != shape:
            raise BadInputError(
                f"the adapter {path.parent}: {name} has the shape {list(stored[name].shape)}",
                expected=f"{list(shape)}, from the checkpoint's {module} and the rank in {ADAPTER_CONFIG_NAME}",
                remedy=_OTHER_BASE,
            )
        pair.append(stored[name])
    root = math.sqrt(rank) if config.get_bool("use_rslora") else rank
    return LowRankProduct(down=pair[0], up=pair[1], scale=alpha / root)


def _by_module(config: JsonValues, table: str, modules: Sequence[str], default: str) -> list[object]:
    """Return for each module the value of the first pattern that matches the end of its name, or the default."""
    values = config.get_object(table, max_count=_MAX_NAMES)
    matches = first_matches([rf"(.*\.)?({pattern})" for pattern in values], modules, source=config.source)
    choices = list(values.values())
    return [config.values.get(default) if match is None else choices[match] for match in matches]


def _check_replacement(
    name: str,
    tensor: StoredTensor,
    products: Mapping[str, LowRankProduct],
    base_shapes: Mapping[str, tuple[int, ...]],
) -> None:
    if name not in base_shapes or name in products:
        raise BadInputError(
            f"the adapter {tensor.file} has the tensor {tensor.name}, which does not fit the checkpoint",
            expected="LoRA tensors of linear modules in target_modules, and whole tensors of the checkpoint",
            remedy=_OTHER_BASE,
        )
    if tensor.shape != base_shapes[name]:
        raise BadInputError(
            f"the adapter {tensor.file}: {tensor.name} has the shape {list(tensor.shape)}",
            expected=f"{list(base_shapes[name])}, as in the checkpoint",
            remedy=_OTHER_BASE,
        )


def _check_saved_modules(
    config: JsonValues,
    replaced: Mapping[str, StoredTensor],
    base_shapes: Mapping[str, tuple[int, ...]],
) -> None:
    for saved in sorted(set(config.get_strings("modules_to_save", max_count=_MAX_SAVED))):
        names = [name for name in base_shapes if name.rpartition(".")[0].endswith(saved)]
        missing = [name for name in names if name not in replaced]
        if missing or not names:
            raise BadInputError(
                f"{config.source} has {shown(saved)} in modules_to_save, but "
                + (f"the adapter has no tensor {missing[0]}" if missing else "the checkpoint has no such module"),
                expected="every tensor of the modules in modules_to_save, all of them modules of the checkpoint",
                remedy=_OTHER_BASE,
            )
