"""PEFT LoRA adapters: the tensors of the base that they change, and the changes.

This module reads them from adapter_config.json and adapter_model.safetensors.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa.export.checkpoint.module_patterns import first_matches
from lopa.export.checkpoint.tensors import CheckpointTensor, StoredTensor, have_equal_values, tensors_from_file
from lopa.export.families.family import Architecture
from lopa.export.json_file import JsonValues, json_object_from_file, shown
from lopa.runtime.errors import BadInputError

ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_WEIGHTS_NAME = "adapter_model.safetensors"
_KEY_PREFIX = "base_model.model."
_EXPERT = re.compile(r"\.experts\.\d+\.")
"""Part of the name of a single expert's tensor."""
_COPY = ".base_layer.weight"
"""Ending of the name of a base weight that PEFT saves beside LoRA matrices of the head."""
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
_KNOWN = """
alpha_pattern auto_mapping base_model_name_or_path bias corda_config ensure_weight_tying eva_config exclude_modules
inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config lora_alpha lora_dropout lora_ga_config
megatron_config megatron_core modules_to_save peft_type peft_version qalora_group_size r rank_pattern revision
runtime_config target_modules task_type use_rslora
""".split()  # noqa: SIM905  a table is easier to read
"""Entries that are read, and entries that change nothing once an adapter is trained."""
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
    warnings: tuple[str, ...] = ()
    """Messages on entries of the configuration that the export does not know and ignores, as PEFT does."""


NO_ADAPTER = Adapter(products={}, replaced={})


def adapter_from_folder(
    folder: Path,
    base: Mapping[str, CheckpointTensor],
    architecture: Architecture,
    *,
    tied: bool,
    ignored: tuple[str, ...] = (),
) -> Adapter:
    """Read the adapter in `folder` for a base of `architecture` with the tensors `base`.

    `tied` is True if the base's head is its embedding. Tensors whose names start with one of `ignored` change parts
    that are not exported. Raises BadInputError for missing or broken files and for unsupported kinds of adapter. Also
    raises it for the adapter of another base, recognized by other shapes, unknown modules or missing tensors.
    """
    path = folder / ADAPTER_CONFIG_NAME
    values = json_object_from_file(
        path, remedy="check the path: a PEFT adapter folder is needed", max_bytes=_MAX_CONFIG_BYTES
    )
    config = JsonValues(values, str(path), _SAVE_AGAIN)
    _check_supported(config, path, is_shared=bool(architecture.shared_prefixes))
    weights = folder / ADAPTER_WEIGHTS_NAME
    if not weights.is_file():
        raise BadInputError(
            f"{folder} has no {ADAPTER_WEIGHTS_NAME}",
            expected="an adapter saved as safetensors",
            remedy="save it with safe_serialization=True; pickled adapters (.bin) are never opened",
        )
    outer = (architecture.outer_names["embedding.weight"], architecture.outer_names["head.weight"])
    shared = _shared_names(base, architecture.shared_prefixes)
    if shared:
        base = {name: tensor for name, tensor in base.items() if not _EXPERT.search(name)}
        base |= {other: base[name] for name, other in shared.items() if name != outer[0]}
    stored = {name: each for name, each in _by_module_name(weights).items() if not name.startswith(ignored)}
    base_shapes = {name: tensor.shape for name, tensor in base.items()}
    modules = _target_modules(config, base_shapes, architecture, tied=tied)
    ranks = _by_module(config, "rank_pattern", modules, "r")
    alphas = _by_module(config, "alpha_pattern", modules, "lora_alpha")
    products = {
        f"{module}.weight": _product(module, rank, alpha, config, path, stored, base_shapes)
        for module, rank, alpha in zip(modules, ranks, alphas, strict=True)
    }
    used = {tensor.name.removeprefix(_KEY_PREFIX) for pair in products.values() for tensor in (pair.down, pair.up)}
    copies = {f"{module}{_COPY}": base[f"{module}.weight"] for module in modules}
    used |= {name for name, own in copies.items() if name in stored and have_equal_values(stored[name], own)}
    replaced = {name: tensor for name, tensor in stored.items() if name not in used}
    for name, tensor in sorted(replaced.items(), key=lambda each: each[0].endswith(_COPY)):
        _check_replacement(name, tensor, products, base_shapes)
    if tied:
        replaced |= _tied_replacement(config, replaced, outer)
    _check_saved_modules(config, replaced, base_shapes)
    _check_shared(folder, shared, products, replaced)
    for other in shared.values():
        products.pop(other, None)
        replaced.pop(other, None)
    unknown = [name for name, value in values.items() if value and name not in (*_KNOWN, *_UNSUPPORTED)]
    warnings = (f"{path}: ignoring {', '.join(unknown)}, which lopa-export does not know",) if unknown else ()
    return Adapter(products, replaced, warnings)


def _shared_names(base: Mapping[str, CheckpointTensor], prefixes: Mapping[str, str]) -> dict[str, str]:
    """Return the name in the second module of each tensor that two modules of the network share."""
    pairs = ((name, own, other) for name in base for own, other in prefixes.items() if name.startswith(own))
    found = {name: other + name.removeprefix(own) for name, own, other in pairs if not _EXPERT.search(name)}
    return {name: other for name, other in found.items() if other not in base}


def _check_shared(
    folder: Path,
    shared: Mapping[str, str],
    products: Mapping[str, LowRankProduct],
    replaced: Mapping[str, StoredTensor],
) -> None:
    """Raise BadInputError if the two modules of a shared tensor are not changed in the same way.

    PEFT computes each module with its own change. When it merges, it adds both changes to the shared tensor.
    """
    changes = {name: [pair.down, pair.up] for name, pair in products.items()} | {n: [t] for n, t in replaced.items()}
    for name, other in shared.items():
        own, second = changes.get(name, []), changes.get(other, [])
        scales = {products[each].scale for each in (name, other) if each in products}
        if len(own) != len(second) or len(scales) > 1 or not all(map(have_equal_values, own, second)):
            raise BadInputError(
                f"the adapter {folder} changes {name} and {other} in different ways",
                expected="the same change of both modules, which share this weight in the checkpoint and in a bundle",
                remedy="train one pair of LoRA matrices that both modules use",
            )


def _tied_replacement(
    config: JsonValues, replaced: Mapping[str, StoredTensor], outer: tuple[str, str]
) -> dict[str, StoredTensor]:
    """Return the replacements of embedding and head that stay one tensor in PEFT.

    With modules_to_save each has a copy of its own, unless ensure_weight_tying is set.
    """
    found = [replaced[name] for name in outer if name in replaced]
    saved = tuple(config.get_strings("modules_to_save", max_count=_MAX_SAVED))
    is_apart = any(name.removesuffix(".weight").endswith(saved) for name in outer)
    if not found or (is_apart and not config.get_bool("ensure_weight_tying")):
        return {}
    if is_apart and not any(name.endswith("embed_tokens.weight") for name in outer):
        raise config.error_for("ensure_weight_tying", True, "an adapter without it: PEFT finds no tied modules here")
    if not have_equal_values(found[0], found[-1]):
        raise config.error_for("modules_to_save", list(saved), f"equal values of the tied {' and '.join(outer)}")
    return dict.fromkeys(outer, found[0])


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


def _check_supported(config: JsonValues, path: Path, *, is_shared: bool) -> None:
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
            remedy="train an adapter without it: peft would merge it twice into the weights that two modules share"
            if is_shared
            else "merge this adapter with merge_and_unload of peft, save the result and export that without --lora",
        )


def _target_modules(
    config: JsonValues, base_shapes: Mapping[str, tuple[int, ...]], architecture: Architecture, *, tied: bool
) -> list[str]:
    """Return the names of the base's matrices that the adapter changes. PEFT leaves modules of modules_to_save."""
    embedding, full_head = (architecture.outer_names[name] for name in ("embedding.weight", "head.weight"))
    saved = [f".{name}." for name in config.get_strings("modules_to_save", max_count=_MAX_SAVED)]
    matrices = [
        name.removesuffix(".weight")
        for name, shape in base_shapes.items()
        if len(shape) == 2 and name != embedding and not (tied and name == full_head)
        if not any(each in f".{name}" for each in saved)
    ]
    head = full_head.removesuffix(".weight")
    targets, excluded = (_named(config, name, matrices, head) for name in ("target_modules", "exclude_modules"))
    layers = _layers(config, architecture)
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


def _layers(config: JsonValues, architecture: Architecture) -> frozenset[int]:
    """Return the numbers of the layers to change; empty for all. layers_pattern names the list of layers."""
    name = "layers_to_transform"
    value, patterns = config.values.get(name), config.values.get("layers_pattern")
    if value is None:
        return frozenset()
    own = _endings(architecture.layer_prefix.removesuffix(".{layer}."))
    if patterns and not set(own).intersection([patterns] if isinstance(patterns, str) else patterns):
        raise config.error_for("layers_pattern", patterns, f"{own[-1]}, the name of the checkpoint's list of layers")
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
            expected="LoRA tensors of linear modules in target_modules (not of the embedding or a head that is tied to "
            "it), whole tensors of the checkpoint, and base weights that are equal to its own",
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
