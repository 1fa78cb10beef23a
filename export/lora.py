"""A PEFT LoRA adapter: which tensors of its base it changes, and by what.

Reads adapter_config.json and adapter_model.safetensors. Does not know what becomes of the merged tensors.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.export.checkpoint import StoredTensor, tensors_from_file
from lopa.export.json_file import json_object_from_file
from lopa.runtime.errors import BadInputError

ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_WEIGHTS_NAME = "adapter_model.safetensors"
_KEY_PREFIX = "base_model.model."
_OTHER_BASE = "give the adapter that was trained on this checkpoint"
# Settings that change what an adapter computes; each is off when its value is false, null or empty.
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
# Initializations that also change the base's own weights, so that the base in the checkpoint is not what was trained.
_BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class LowRankProduct:
    """scale * up @ down is added to a matrix [outputs, inputs]."""

    down: StoredTensor
    """lora_A, [rank, inputs]"""
    up: StoredTensor
    """lora_B, [outputs, rank]"""
    scale: float


@dataclass(frozen=True)
class Adapter:
    """What an adapter does to its base; both tables are keyed by the base's tensor names."""

    products: dict[str, LowRankProduct]
    replaced: dict[str, StoredTensor]
    """Tensors that were trained whole (modules_to_save)."""


NO_ADAPTER = Adapter(products={}, replaced={})


def adapter_from_folder(folder: Path, base_shapes: Mapping[str, tuple[int, ...]]) -> Adapter:
    """Read the adapter in `folder` for a base with tensors of `base_shapes`.

    Raises BadInputError for missing or broken files, for kinds of adapter that are not supported, and for an adapter
    of another base: tensors of other shapes, for modules that the base does not have, or lacking for ones it has.
    """
    path = folder / ADAPTER_CONFIG_NAME
    config = json_object_from_file(path, remedy="check the path: a PEFT adapter folder is needed")
    _check_supported(config, path)
    weights = folder / ADAPTER_WEIGHTS_NAME
    if not weights.is_file():
        raise BadInputError(
            f"{folder} has no {ADAPTER_WEIGHTS_NAME}",
            expected="an adapter saved as safetensors",
            remedy="save it with safe_serialization=True; pickled adapters (.bin) are never opened here",
        )
    stored = {name.removeprefix(_KEY_PREFIX): tensor for name, tensor in tensors_from_file(weights).items()}
    modules = _target_modules(config, path, base_shapes)
    products = {f"{module}.weight": _product(module, config, path, stored, base_shapes) for module in modules}
    used = {tensor.name.removeprefix(_KEY_PREFIX) for pair in products.values() for tensor in (pair.down, pair.up)}
    replaced = {name: tensor for name, tensor in stored.items() if name not in used}
    for name, tensor in replaced.items():
        _check_replacement(name, tensor, products, base_shapes)
    _check_saved_modules(config, replaced, base_shapes, path)
    return Adapter(products, replaced)


def _check_supported(config: dict[str, Any], path: Path) -> None:
    initialization = config.get("init_lora_weights")
    wrong = [name for name in _UNSUPPORTED if config.get(name)]
    if config.get("peft_type") != "LORA":
        wrong.append("peft_type")
    if config.get("bias", "none") != "none":
        wrong.append("bias")
    if isinstance(initialization, str) and initialization.lower().startswith(_BASE_CHANGING):
        wrong.append("init_lora_weights")
    if wrong:
        raise BadInputError(
            f"{path} has " + ", ".join(f"{name} = {config.get(name)!r}" for name in wrong),
            expected="a plain LoRA adapter: peft_type LORA, bias none, no DoRA or other extension",
            remedy="merge this adapter with peft's merge_and_unload, save the result and export that without --lora",
        )


def _target_modules(config: dict[str, Any], path: Path, base_shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Names of the base's matrices that the adapter says it changes."""
    matrices = [
        name.removesuffix(".weight")
        for name, shape in base_shapes.items()
        if len(shape) == 2 and not name.endswith("embed_tokens.weight")
    ]
    targets, excluded = config.get("target_modules"), config.get("exclude_modules")
    layers = config.get("layers_to_transform")
    wanted = {layers} if isinstance(layers, int) else set(layers or ())
    found = [
        module
        for module in matrices
        if _is_named(module, targets, path)
        and not _is_named(module, excluded, path)
        and (not wanted or _layer_of(module) in wanted)
    ]
    if not found:
        raise BadInputError(
            f"{path} has target_modules {targets!r}",
            expected="names of linear modules of the checkpoint, such as q_proj",
            remedy=_OTHER_BASE,
        )
    return found


def _is_named(module: str, names: object, path: Path) -> bool:
    """Whether PEFT's target_modules or exclude_modules, a pattern or a list of endings, names the module."""
    if not names:
        return False
    if names == "all-linear":
        return module != "lm_head"
    if isinstance(names, str):
        return _pattern(names, path).fullmatch(module) is not None
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return any(module == name or module.endswith(f".{name}") for name in names)
    raise BadInputError(
        f"{path} names the modules {names!r}", expected="a pattern or a list of names", remedy="save the adapter again"
    )


def _layer_of(module: str) -> int | None:
    number = re.search(r"\.(\d+)\.", module)
    return int(number[1]) if number else None


def _product(
    module: str,
    config: dict[str, Any],
    path: Path,
    stored: Mapping[str, StoredTensor],
    base_shapes: Mapping[str, tuple[int, ...]],
) -> LowRankProduct:
    rank = int(_of_pattern(config, "rank_pattern", module, "r", path))
    alpha = _of_pattern(config, "alpha_pattern", module, "lora_alpha", path)
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
    root = math.sqrt(rank) if config.get("use_rslora") else rank
    return LowRankProduct(down=pair[0], up=pair[1], scale=alpha / root)


def _of_pattern(config: dict[str, Any], table: str, module: str, default: str, path: Path) -> float:
    """The value for the module: of the first pattern that matches its name or the end of it, else the default."""
    patterns = config.get(table) or {}
    value = next(
        (found for key, found in patterns.items() if _pattern(rf"(.*\.)?({key})", path).fullmatch(module)),
        config.get(default),
    )
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise BadInputError(
            f"{path} gives {module} {default} = {value!r}",
            expected="a positive number",
            remedy="save the adapter again",
        )
    return value


def _pattern(text: str, path: Path) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise BadInputError(
            f"{path} has the pattern {text!r}: {error}",
            expected="a regular expression",
            remedy="correct the pattern in the adapter's configuration",
        ) from error


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
    config: dict[str, Any],
    replaced: Mapping[str, StoredTensor],
    base_shapes: Mapping[str, tuple[int, ...]],
    path: Path,
) -> None:
    for saved in config.get("modules_to_save") or ():
        names = [name for name in base_shapes if name.rpartition(".")[0].endswith(saved)]
        missing = [name for name in names if name not in replaced]
        if missing or not names:
            raise BadInputError(
                f"{path} has {saved!r} in modules_to_save, but "
                + (f"the adapter has no tensor {missing[0]}" if missing else "the checkpoint has no such module"),
                expected="every tensor of the modules in modules_to_save, for modules of the checkpoint",
                remedy=_OTHER_BASE,
            )
