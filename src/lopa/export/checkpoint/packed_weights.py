"""Matrices that a published checkpoint stores as packed integers, in the layouts of GPTQ and AWQ.

Both store W[in, out] = (q - z) * s with groups of neighbouring inputs that share a zero point z and a scale s. A
32-bit word holds 8 numbers of 4 bits, and in GPTQ also 4 of 8 bits.

GPTQ has qweight [in / 8, out], with numbers along the inputs. Its qzeros [groups, out / 8] hold z - 1. In the layout
gptq_v2 they hold z. AWQ has qweight [in, out / 8], with numbers along the outputs in the order 0 2 4 6 1 3 5 7. Its
qzeros hold z.

One matrix at a time is unpacked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lopa.export.checkpoint.tensors import CheckpointTensor, StoredTensor
from lopa.export.json_file import JsonValues, shown
from lopa.runtime.errors import BadInputError

if TYPE_CHECKING:
    import torch

_WEIGHT, _ZEROS, _SCALES, _GROUPS = ".qweight", ".qzeros", ".scales", ".g_idx"
_WORD_BITS = 32
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position in the word of each output."""
_BITS: Mapping[str, tuple[int, ...]] = {"gptq": (4, 8), "awq": (4,)}
_LAYOUTS = ("checkpoint_format", "format", "version")
"""Entries that name the layout, in any case of letters."""
_OTHER_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "backend": lambda value: value != "llm-awq",
    "pack_dtype": lambda value: value == "int32",
    # Modules that are left out are found by their tensors. Other values change bits and groups of single modules.
    "dynamic": lambda value: isinstance(value, dict) and all(name.startswith("-:") for name in value),
    **dict.fromkeys(("is_marlin_format", "adapter", "rotation"), lambda value: not value),
}
"""Entries of quantization_config that may select another packing, and whether a value selects the usual one."""
_WITHOUT_EFFECT = """
act_group_aware batch_size block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent dataset desc_act
disable_exllama do_fuse exllama_config fuse_max_seq_len lm_head max_input_length meta model_file_base_name
model_name_or_path model_seqlen module_name_preceding_first_block modules_in_block_to_quantize modules_to_fuse
modules_to_not_convert mse offload_to_disk pad_token_id static_groups sym tokenizer true_sequential use_cuda_fp16
use_exllama zero_point
"""
"""Names of entries that tell how the matrices were made, and of those that their tensors show."""
_READ = (*_LAYOUTS, "quant_method", "bits", "w_bit", "group_size", "q_group_size")
PACKING_FIELDS = frozenset((*_READ, *_OTHER_FIELDS, *_WITHOUT_EFFECT.split()))
"""Entries of quantization_config that are read, or known to change nothing."""
_ROWS = 1024
"""Rows of words that are unpacked at a time."""
_REMEDY = "export the original checkpoint, with --quantize int4 if it should be small"


@dataclass(frozen=True)
class PackedFormat:
    """Layout of a checkpoint's packed matrices."""

    method: Literal["gptq", "awq"]
    bits: int
    zero_offset: int
    """Number that is added to a stored zero point."""
    group: int | None = None
    """Inputs that share a scale; None for a whole column, or if the configuration does not say it."""


@dataclass(frozen=True)
class PackedTensor:
    """A packed matrix that reads as floating-point values [outputs, inputs]."""

    name: str
    format: PackedFormat
    integers: StoredTensor
    zeros: StoredTensor
    scales: StoredTensor
    groups: StoredTensor | None
    """Group of each input, or None if groups are neighbours."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs and inputs."""
        words, columns = self.integers.shape
        count = _WORD_BITS // self.format.bits
        return (columns, words * count) if self.format.method == "gptq" else (columns * count, words)

    @property
    def file(self) -> Path:
        """File of the integers."""
        return self.integers.file

    @property
    def dtype(self) -> "torch.dtype":
        """Type of the values that are read. It holds every product of an integer and a scale of 16 bits exactly."""
        import torch

        return torch.float32

    def as_matrix(self) -> "PackedTensor":
        """Return this matrix."""
        return self

    def read(self) -> "torch.Tensor":
        """Return all values, float32 [outputs, inputs]."""
        import torch

        values = torch.empty(self.shape, dtype=torch.float32)
        self.read_rows(0, values)
        return values

    def read_rows(self, start: int, rows: "torch.Tensor") -> None:
        """Fill `rows`, float32 [n, inputs], with the values of the outputs that begin at number `start`."""
        matrix, columns = _unpacked(self), slice(start, start + len(rows))
        integers = matrix.integers[:, columns].float() - matrix.zeros[:, columns].float()[matrix.groups]
        rows.copy_((integers * matrix.scales[:, columns][matrix.groups]).t())

    def int4_columns(self, outputs: range, block: int) -> "tuple[torch.Tensor, torch.Tensor] | None":
        """Return the integers, int8 [inputs, n], and the scales, float32 [inputs / block, n], of some outputs.

        The values are exactly integers times scales, one for each `block` inputs. The result is None where that is not
        possible. Numbers of 8 bits, zero points other than 8, and groups across the borders of blocks prevent it.
        """
        matrix = _unpacked(self)
        columns = slice(outputs.start, outputs.stop)
        if self.format.bits != 4 or not bool((matrix.zeros[:, columns] == 8).all()):
            return None
        blocks = matrix.groups.reshape(-1, block) if len(matrix.groups) % block == 0 else None
        if blocks is None or not bool((blocks == blocks[:, :1]).all()):
            return None
        return (matrix.integers[:, columns] - 8).to(_int8()), matrix.scales[blocks[:, 0]][:, columns]


@dataclass(frozen=True)
class _Unpacked:
    integers: "torch.Tensor"
    """int16 [inputs, outputs], from 0."""
    zeros: "torch.Tensor"
    """int16 [groups, outputs]."""
    scales: "torch.Tensor"
    """float32 [groups, outputs]."""
    groups: "torch.Tensor"
    """Group of each input."""


def packed_format_from_config(config: JsonValues) -> PackedFormat | None:
    """Return the layout that config.json's quantization_config names, or None without one.

    Raises BadInputError for a method or layout that cannot be read.
    """
    given = config.values.get("quantization_config")
    if given is None:
        return None
    values = {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else {}
    method = values.get("quant_method")
    bits, group = (values.get(new, values.get(old)) for new, old in (("bits", "w_bit"), ("group_size", "q_group_size")))
    layouts = [str(values[name]).lower() for name in _LAYOUTS if name in values]
    if method == "gptq" and not any(name in values for name in _LAYOUTS[:2]):
        layouts.insert(0, "gptq")  # transformers does not read `version` there
    layout = (layouts or ["gemm"])[0]
    supported = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",)}
    what = None
    if not isinstance(method, str) or method not in supported:
        what = f"the method {shown(method)}"
    elif set(layouts) - {layout} or layout not in supported[method]:
        what = f"the layout {' and '.join(dict.fromkeys(map(shown, layouts)))}"
    elif bits not in _BITS[method]:
        what = f"{shown(bits)} bits"
    elif group is not None and (type(group) is not int or group < -1):
        what = f"groups of {shown(group)}"
    elif odd := [name for name in _OTHER_FIELDS if name in values and not _OTHER_FIELDS[name](values[name])]:
        what = f"{odd[0]} = {shown(values[odd[0]])}"
    if what is not None:
        raise BadInputError(
            f"{config.source} has a quantization_config with {what}",
            expected="gptq (4 or 8 bits; layouts gptq, gptq_v2) or awq (4 bits; layout gemm)",
            remedy=_REMEDY,
        )
    size = group if group and group > 0 else None
    return PackedFormat("gptq" if method == "gptq" else "awq", int(bits or 0), 1 if layout == "gptq" else 0, size)


def with_packed_weights(
    stored: Mapping[str, StoredTensor], format: PackedFormat | None, source: str
) -> dict[str, CheckpointTensor]:
    """Return `stored` with each packed matrix under the name of its weight. `source` names the checkpoint in errors.

    Raises BadInputError for packed matrices without a format, for missing parts, and for parts of other shapes.
    """
    modules = [name.removesuffix(_WEIGHT) for name in stored if name.endswith(_WEIGHT)]
    found: dict[str, CheckpointTensor] = dict(stored)
    if not modules:
        return found
    if format is None:
        raise BadInputError(
            f"{source} has packed matrices such as {modules[0]}{_WEIGHT}, but no quantization_config",
            expected="config.json with the quantization_config of the packed matrices",
            remedy="copy config.json again",
        )
    for module in modules:
        parts = {part: found.pop(module + part, None) for part in (_WEIGHT, _ZEROS, _SCALES, _GROUPS)}
        found[f"{module}.weight"] = _packed_tensor(module, format, parts, source)
    return found


def _packed_tensor(
    module: str, format: PackedFormat, parts: Mapping[str, CheckpointTensor | None], source: str
) -> PackedTensor:
    integers, zeros, scales, groups = (parts[part] for part in (_WEIGHT, _ZEROS, _SCALES, _GROUPS))
    for part, tensor in ((_ZEROS, zeros), (_SCALES, scales)):
        if tensor is None:
            raise _wrong(source, f"{module}{part} is missing")
    assert isinstance(integers, StoredTensor)
    assert isinstance(zeros, StoredTensor)
    assert isinstance(scales, StoredTensor)
    assert groups is None or isinstance(groups, StoredTensor)
    if len(integers.shape) != 2 or len(scales.shape) != 2:
        raise _wrong(source, f"{module}{_WEIGHT} has the shape {list(integers.shape)}")
    packed = PackedTensor(f"{module}.weight", format, integers, zeros, scales, groups)
    outputs, inputs = packed.shape
    count = _WORD_BITS // format.bits
    expected = {
        _ZEROS: (zeros.shape, (scales.shape[0], outputs // count)),
        _SCALES: (scales.shape, (-(-inputs // format.group) if format.group else scales.shape[0], outputs)),
        _GROUPS: ((inputs,) if groups is None else groups.shape, (inputs,)),
    }
    for part, (own, right) in expected.items():
        if own != right or (groups is None and inputs % scales.shape[0]):
            raise _wrong(source, f"{module}{part} has the shape {list(own)} beside a matrix of {inputs} inputs")
    return packed


def _wrong(source: str, what: str) -> BadInputError:
    return BadInputError(f"{source}: {what}", expected="complete packed matrices of GPTQ or AWQ", remedy=_REMEDY)


@lru_cache(maxsize=1)
def _unpacked(tensor: PackedTensor) -> _Unpacked:
    """Return the numbers of a matrix. Those of the last one are kept, since it is read in blocks."""
    import torch

    format, inputs = tensor.format, tensor.shape[1]
    along_inputs = format.method == "gptq"
    integers = _numbers(tensor.integers.read(), format, along_inputs=along_inputs)
    zeros = _numbers(tensor.zeros.read(), format, along_inputs=False) + format.zero_offset
    if format.zero_offset and bool((zeros == 1 << format.bits).any()):
        # Readers add 1 and differ then: those that keep the number of bits get 0, others 16 (or 256).
        stored = (1 << format.bits) - 1
        raise _wrong(str(tensor.file), f"{tensor.name} has a zero point of {stored} in the first layout")
    count = tensor.scales.shape[0]
    groups = torch.arange(inputs) // (inputs // count) if tensor.groups is None else tensor.groups.read().long()
    if not bool(((groups >= 0) & (groups < count)).all()):
        raise _wrong(str(tensor.file), f"{tensor.name} has inputs in groups outside 0 to {count - 1}")
    return _Unpacked(integers, zeros, tensor.scales.read().float(), groups)


def _numbers(words: "torch.Tensor", format: PackedFormat, *, along_inputs: bool) -> "torch.Tensor":
    """Return the numbers of words, int16; a word's numbers follow one another along the inputs or the outputs."""
    import torch

    count = _WORD_BITS // format.bits
    order = _AWQ_ORDER if format.method == "awq" else tuple(range(count))
    shifts, mask = torch.tensor([format.bits * each for each in order]), (1 << format.bits) - 1
    rows, columns = words.shape
    shape = (rows * count, columns) if along_inputs else (rows, columns * count)
    numbers = torch.empty(shape, dtype=torch.int16)
    step = count if along_inputs else 1
    for first in range(0, rows, _ROWS):
        part = words[first : first + _ROWS].long()
        spread = (part[:, None, :] >> shifts[:, None]) if along_inputs else (part[:, :, None] >> shifts)
        numbers[first * step : (first + len(part)) * step] = (spread & mask).reshape(len(part) * step, shape[1])
    return numbers


def _int8() -> "torch.dtype":
    import torch

    return torch.int8
