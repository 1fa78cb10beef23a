"""LoRA adapters merged by peft, also for checkpoints whose modules have other names than transformers' network.

An adapter names the modules of the code that it was trained with. That code may have one module per expert, one matrix
for query, key and value, or other names. Such a network is presented to peft under these names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel

from lopa.export.verify.reference_names import Names

_EMBEDDING, _HEAD = "model.embed_tokens", "lm_head"
Matrices = Mapping[str, list[Tensor]]
"""Parts of matrices [outputs, inputs] by the module's name in the checkpoint; rows of the parts follow each other."""


@torch.no_grad()
def merge_adapter(network: Any, lora: Path, names: Names) -> None:
    """Merge the adapter in the folder `lora` into `network`, whose checkpoint has `names`."""
    modules, matrices = _parts(network, names)
    if not matrices and all(path == name for path, name in modules.items()):
        _merged(network, lora)
        return
    tree = _merged(_Tree(network, modules, matrices), lora)
    for path, name in modules.items():
        network.set_submodule(path, tree.get_submodule(name))
    for name, parts in matrices.items():
        rows = tree.get_submodule(name).weight.split([len(part) for part in parts])
        for part, merged in zip(parts, rows, strict=True):
            part.copy_(merged)


def _merged(model: Any, lora: Path) -> Any:
    return PeftModel.from_pretrained(model, lora, torch_device="cpu").merge_and_unload()


def _parts(network: Any, names: Names) -> tuple[dict[str, str], dict[str, list[Tensor]]]:
    """Return the checkpoint's name of each module with a weight, and the matrices that are modules there only."""
    modules: dict[str, str] = {}
    matrices: dict[str, list[Tensor]] = {}
    for path, module in network.named_modules():
        name, weight = names.in_checkpoint(path), getattr(module, "weight", None)
        if isinstance(getattr(module, "gate_up_proj", None), nn.Parameter):
            for number, (both, down) in enumerate(zip(module.gate_up_proj, module.down_proj, strict=True)):
                gate, up = both.chunk(2)
                for part, tensor in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
                    matrices[f"{name}.{number}.{part}"] = [tensor]
        elif weight is not None and (names.is_fused(path) or path.endswith(".mlp.gate")):
            matrices.setdefault(name, []).append(weight)  # a router is no nn.Linear in transformers
        elif weight is not None:
            modules[path] = name
    return modules, matrices


class _Tree(PreTrainedModel, GenerationMixin):  # type: ignore[misc]  # transformers is untyped
    """Modules of a network under the checkpoint's names. They share the network's memory where they can."""

    def __init__(self, network: Any, modules: Mapping[str, str], matrices: Matrices) -> None:
        super().__init__(PreTrainedConfig(tie_word_embeddings=network.config.tie_word_embeddings))
        self._embedding = modules[_EMBEDDING]
        self._tied_weights_keys = {f"{modules[_HEAD]}.weight": f"{self._embedding}.weight"}
        for path, name in modules.items():
            self._place(name, network.get_submodule(path))
        for name, parts in matrices.items():
            weight = parts[0] if len(parts) == 1 else torch.cat(parts)
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
            linear.weight = nn.Parameter(weight)
            self._place(name, linear)

    def _place(self, name: str, module: nn.Module) -> None:
        parent: nn.Module = self
        *outer, last = name.split(".")
        for part in outer:
            if part not in parent._modules:
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        parent.add_module(last, module)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding, whose copies peft ties to it for ensure_weight_tying."""
        embedding: nn.Module = self.get_submodule(self._embedding)
        return embedding
