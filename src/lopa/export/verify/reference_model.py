"""Reference for complete sequences under any mask: a network of transformers with a checkpoint's weights.

transformers reads the configuration and the weights, and peft merges an adapter. Ours are the names of some families
(lopa.export.verify.reference_names) and the packed matrices of GPTQ and AWQ (lopa.export.verify.reference_packing).

Biases and norms of the layers determine whether it is Qwen2, Qwen3 or Llama. For mixtures of experts it is GLM-4-MoE if
the router has a sigmoid, and Qwen3-MoE otherwise. It shares no code with lopa's own network.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Concatenate, Split, WeightConverter
from transformers.utils import logging

from lopa.export.json_file import json_object_from_file
from lopa.export.verify.cases import Sequences
from lopa.export.verify.quantized_weights import RoundedRows
from lopa.export.verify.reference_names import Names, names_of_architecture
from lopa.export.verify.reference_packing import unpacked_weights
from lopa.export.verify.session_check import WholeForward
from lopa.runtime.bundle.manifest import PREDICTION_SHIFTS, ModelDimensions
from lopa.runtime.errors import BadInputError, LopaError
from lopa.runtime.extra import extra_needed


class _FusedGlm4Moe(Glm4MoeForCausalLM):  # type: ignore[misc]  # transformers is untyped
    """GLM-4-MoE whose checkpoints have query, key and value in one matrix."""


class _AnyQwen3Moe(Qwen3MoeForCausalLM):  # type: ignore[misc]
    """Qwen3-MoE whose checkpoints may have stacked matrices of gates and of ups."""


_GATES_AND_UPS = WeightConverter(
    ["mlp.experts.gate_proj", "mlp.experts.up_proj"], "mlp.experts.gate_up_proj", [Concatenate(1)]
)
_QUERY_KEY_VALUE = WeightConverter(
    "attention.query_key_value.weight", [f"self_attn.{part}_proj.weight" for part in ("q", "k", "v")], [Split(0)]
)
for _model, _converters in ((_FusedGlm4Moe, [_GATES_AND_UPS, _QUERY_KEY_VALUE]), (_AnyQwen3Moe, [_GATES_AND_UPS])):
    register_checkpoint_conversion_mapping(_model.__name__, _converters, overwrite=True)


@dataclass(frozen=True)
class _Network:
    """Classes of a network of transformers."""

    config: type[Any]
    model: type[Any]

    @property
    def name(self) -> str:
        """Name in errors, such as Qwen2."""
        return self.config.__name__.removesuffix("Config")


_LLAMA = _Network(LlamaConfig, LlamaForCausalLM)
_QWEN2 = _Network(Qwen2Config, Qwen2ForCausalLM)
_QWEN3 = _Network(Qwen3Config, Qwen3ForCausalLM)
_QWEN3_MOE = _Network(Qwen3MoeConfig, _AnyQwen3Moe)
_GLM4_MOE = _Network(Glm4MoeConfig, _FusedGlm4Moe)
_NOT_SETTINGS = ("model_type", "architectures", "quantization_config", "pad_token_id")
"""Entries of config.json that would select other names, or a library for GPUs, or keep a row from being trained."""


class _NoSharedExpert(nn.Module):
    """Shared expert of a layer without one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return zeros in the shape of `x`."""
        return torch.zeros_like(x)


class TransformersReference:
    """Reference that runs a network of transformers in float32 on the CPU."""

    name = "transformers"

    def __init__(self, model: Any, rounded: Collection[int] = ()) -> None:
        """Wrap `model`, whose eager attention adds the given mask to the scores. `rounded` is for RoundedRows."""
        self._model = model
        self._rounded = rounded

    @torch.no_grad()
    def forward(self, sequences: Sequences) -> WholeForward:
        """Run the B sequences as one batch. Keys and values come from the model's cache."""
        with RoundedRows(self._rounded):
            return self._forward(sequences)

    def _forward(self, sequences: Sequences) -> WholeForward:
        allowed = torch.from_numpy(sequences.mask)[:, None]  # [B, 1, L, L]
        answer = self._model.model(
            input_ids=torch.from_numpy(sequences.input_ids),
            position_ids=torch.from_numpy(sequences.position_ids),
            # The model uses a mask of 4 axes unchanged and adds no causal mask.
            attention_mask=torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(torch.float32).min),
            use_cache=True,
        )
        queries = torch.from_numpy(sequences.wanted)
        hidden = answer.last_hidden_state[torch.arange(len(queries))[:, None], queries]  # [B, Q, H]
        layers = answer.past_key_values.layers
        return WholeForward(
            logits=self._model.lm_head(hidden).numpy(),
            rows=tuple(part.numpy() for layer in layers for part in (layer.keys, layer.values)),
        )


def network_from_checkpoint(
    dimensions: ModelDimensions, architecture: str, checkpoint: Path, lora: Path | None = None
) -> Any:
    """Return the float32 network, of the kind in `dimensions`, of a checkpoint as transformers and peft read it.

    Raises BadInputError for an unknown architecture, and for files that they cannot read or that do not fit.
    """
    if architecture not in PREDICTION_SHIFTS:
        raise BadInputError(
            f"there is no reference model for the architecture {architecture!r}",
            expected=f"one of {', '.join(PREDICTION_SHIFTS)}",
            remedy="verify it without --checkpoint, against its own weights in numpy",
        )
    if lora is not None:
        with extra_needed("export", ("peft",), "peft, which merges the adapter"):
            from lopa.export.verify.reference_adapter import merge_adapter
    names = names_of_architecture(architecture)
    config = _config_of(dimensions, architecture, checkpoint)
    packing = _config_file(checkpoint).get("quantization_config")
    kind = _network_of(dimensions)
    with _fitting(checkpoint, kind.name):
        stored = None if packing is None else unpacked_weights(checkpoint, packing)
        network, found = kind.model.from_pretrained(
            checkpoint if stored is None else None,
            config=config,
            state_dict=stored,
            key_mapping=names.key_mapping,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # _check_loaded names them
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        if getattr(network, "_hf_peft_config_loaded", False):
            raise ValueError("transformers applies the adapter_config.json in this folder")
        before = set(network.state_dict())
        _adjust(network, dimensions)
        found["unexpected_keys"] |= before - network.state_dict().keys() - found["missing_keys"]
        _check_loaded(network, names, found, checkpoint)
    if lora is not None:
        with _fitting(lora, kind.name):
            merge_adapter(network, lora, names)
    return network.requires_grad_(False).eval()


def _network_of(dimensions: ModelDimensions) -> _Network:
    if dimensions.moe is not None:
        return _GLM4_MOE if dimensions.moe.score == "sigmoid" else _QWEN3_MOE
    return _QWEN3 if dimensions.qk_norm else _QWEN2 if dimensions.qkv_bias else _LLAMA


def _config_of(dimensions: ModelDimensions, architecture: str, checkpoint: Path) -> Any:
    """Return transformers' configuration of the checkpoint."""
    network, content = _network_of(dimensions), _config_file(checkpoint)
    with _fitting(checkpoint, network.name):
        settings = names_of_architecture(architecture).settings(content)
        config = network.config.from_dict({k: v for k, v in settings.items() if k not in _NOT_SETTINGS})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    config.attention_bias = dimensions.qkv_bias
    return config


def _adjust(network: Any, dimensions: ModelDimensions) -> None:
    """Remove the parts of transformers' network that the exported one lacks."""
    for layer in network.model.layers:
        layer.self_attn.o_proj.register_parameter("bias", None)  # Qwen3Attention has four biases or none
        if not dimensions.qk_norm and hasattr(layer.self_attn, "q_norm"):
            layer.self_attn.q_norm = layer.self_attn.k_norm = nn.Identity()  # Qwen3-MoE always has both
        if dimensions.moe is not None and not dimensions.moe.shared_size and hasattr(layer.mlp, "shared_experts"):
            layer.mlp.shared_experts = _NoSharedExpert()


def _check_loaded(network: Any, names: Names, found: Mapping[str, Any], checkpoint: Path) -> None:
    """Raise ValueError for parameters without a tensor, tensors without a parameter, and other shapes.

    transformers only warns of them. Biases of zeros change nothing.
    """
    for name, own, expected in sorted(found["mismatched_keys"]):
        raise ValueError(f"{name} has the shape {list(own)}, expected {list(expected)}")
    missing = sorted(network.state_dict().keys() & found["missing_keys"])
    others = sorted(name for name in found["unexpected_keys"] if not _is_zero_bias(name, names, checkpoint))
    if missing or others:
        problem = f"there is no {missing[0]}" if missing else f"there is no place for {others[0]}"
        raise ValueError(problem)


def _is_zero_bias(name: str, names: Names, checkpoint: Path) -> bool:
    """Return True if the tensor that transformers calls `name` is a bias of zeros."""
    module, _, kind = name.rpartition(".")
    stored = f"{names.in_checkpoint(module)}.{kind}"
    for path in checkpoint.glob("*.safetensors") if kind == "bias" else ():
        with safe_open(path, "pt") as file:
            if stored in file.keys():  # noqa: SIM118  # the file is no mapping
                return not file.get_tensor(stored).any()
    return False


@contextmanager
def _fitting(source: Path, network: str) -> Iterator[None]:
    """Raise BadInputError in place of the errors of transformers and peft about `source`, and keep them silent."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (LopaError, ImportError):
        raise
    except Exception as error:  # many kinds, among them those of configurations, safetensors and regular expressions
        raise _does_not_fit(source, network, error) from error
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def _does_not_fit(source: Path, network: str, problem: object) -> BadInputError:
    return BadInputError(
        f"the files of {source} do not fit transformers' {network}: {problem}",
        expected="files that transformers and peft load, whose tensors have the shapes that config.json gives",
        remedy="pass the checkpoint and the adapter that were exported, each in a folder of its own",
    )


def _config_file(checkpoint: Path) -> dict[str, Any]:
    return json_object_from_file(checkpoint / "config.json", remedy="pass the checkpoint's folder")
