"""Windows for calibration: texts with masked tokens, and the attention mask of the bundle's decoding loop."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lopa.export.checkpoint.tokenizer_files import TokenizerFiles
from lopa.runtime.bundle.manifest import Calibration, DecodingDefaults
from lopa.runtime.contract import Bool, Int64
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, object_from_json

MAX_WINDOW = 256
"""Most tokens of a window."""
_MAX_ANSWER = 128
_SHARES = (0.25, 0.6, 1.0)
"""Shares of an answer's tokens that are masked. A text gives at most one window for each."""
_MAX_ROWS = 20_480
_ROWS_BYTES = 650_000_000
"""Most bytes of the two widest arrays of rows, so that a 7B model fits 2 GB together with its matrix."""
_MIN_ROWS = 256
_EXPECTED = 'JSON lines with "prompt" and, if possible, "answer"'


@dataclass(frozen=True, eq=False)
class CalibrationWindow:
    """One sequence of tokens with masks."""

    ids: Int64
    """Token ids [W]."""
    sampled: Int64
    """Rows whose logits decide the masked tokens."""
    attention: Bool
    """True where a row attends to another, [W, W]."""


@dataclass(frozen=True)
class CalibrationSet:
    """Windows of a file of texts."""

    windows: Sequence[CalibrationWindow]
    sha256: str
    """Digest of the file."""

    @property
    def rows(self) -> int:
        """Number of tokens of all windows."""
        return sum(len(window.ids) for window in self.windows)

    @property
    def record(self) -> Calibration:
        """Entry of the manifest."""
        return Calibration(method="gptq", rows=self.rows, sha256=self.sha256)


def calibration_set(
    path: Path, tokenizer: TokenizerFiles, decoding: DecodingDefaults, *, prediction_shift: int, intermediate_size: int
) -> CalibrationSet:
    """Return windows of the texts in `path`, in their order, as many as memory allows.

    A text is a prompt and its answer, or a prompt whose second half stands for one. Raises BadInputError for a file
    that cannot be read, that has another form, or that is too short.
    """
    text = bytes_from_file(path, expected=_EXPECTED, remedy="check the path")
    encoder = Tokenizer.from_str(tokenizer.tokenizer.decode())
    bos = tokenizer.special_tokens.bos
    start = [bos] if decoding.add_bos and bos is not None else []
    limit = min(_MAX_ROWS, _ROWS_BYTES // (2 * 4 * intermediate_size))
    random = np.random.default_rng(0)
    windows: list[CalibrationWindow] = []
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    for turn, (index, (number, line)) in itertools.product(range(len(_SHARES)), enumerate(lines)):
        share = _SHARES[(turn + index) % len(_SHARES)]  # all shares occur, however few texts fit
        prompt, answer = _texts(line, f"{path}, line {number}")
        prompt_ids, answer_ids = (encoder.encode(each, add_special_tokens=False).ids for each in (prompt, answer))
        if not answer_ids:
            half = len(prompt_ids) // 2
            prompt_ids, answer_ids = prompt_ids[:half], prompt_ids[half:]
        answer_ids = answer_ids[:_MAX_ANSWER]
        prompt_ids = [*start, *prompt_ids][-(MAX_WINDOW - len(answer_ids)) :]
        ids = np.array(prompt_ids + answer_ids, np.int64)
        masked = len(prompt_ids) + np.flatnonzero(random.random(len(answer_ids)) < share)
        sampled = masked - prediction_shift
        ids[masked] = tokenizer.special_tokens.mask
        attention = attention_of_text(len(prompt_ids), len(ids), decoding)
        windows.append(CalibrationWindow(ids, sampled[sampled >= 0], attention))
        if sum(len(window.ids) for window in windows) + MAX_WINDOW > limit:
            break
    found = CalibrationSet(windows, hashlib.sha256(text).hexdigest())
    if found.rows < _MIN_ROWS or not any(len(window.sampled) for window in windows):
        raise BadInputError(
            f"{path} has {found.rows} tokens in {len(lines)} texts",
            expected=f"at least {_MIN_ROWS}; some thousands are better",
            remedy="add prompts with their answers",
        )
    return found


def attention_of_text(prompt: int, length: int, decoding: DecodingDefaults) -> Bool:
    """Return which token of a prompt and its answer attends to which, [length, length], in the decoding loop."""
    if decoding.attention == "full":
        return np.ones((length, length), np.bool_)
    if decoding.attention == "causal":
        return np.tri(length, dtype=np.bool_)
    positions = np.arange(length)
    start = prompt if decoding.alignment == "prompt" else 0
    numbers: npt.NDArray[np.int64] = np.maximum((positions - start) // decoding.block_size, -1)  # -1 is the prompt
    attends: Bool = numbers[:, None] >= numbers[None, :]
    return attends


def _texts(line: bytes, source: str) -> tuple[str, str]:
    """Return prompt and answer of a line. Raises BadInputError."""
    record = object_from_json(line, source=source, expected=_EXPECTED, remedy="correct the line")
    prompt, answer = record.get("prompt"), record.get("answer", "")
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise BadInputError(f"{source}: no text for the key prompt", expected=_EXPECTED, remedy="correct the line")
    return prompt, answer
