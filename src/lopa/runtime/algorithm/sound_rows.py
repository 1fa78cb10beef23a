"""Whether a device's answer can be decoded at all: finite numbers, ids of the vocabulary. Knows arrays only.

A device computes NaN from broken weights, and infinity where a narrow type overflows; both look like any other number
to the rules of decoding, which would make text of them.
"""

import numpy as np

from lopa.runtime.errors import NonFiniteAnswerError
from lopa.runtime.sequence.row_statistics import RowStatistics


def check_rows_are_sound(rows: RowStatistics, vocab_size: int, *, device: str, step: int) -> None:
    """Raise NonFiniteAnswerError unless `rows`, those that one request asked for, can be decoded.

    The candidates behind the first may have a log-probability of minus infinity: a probability that underflowed.
    """
    if not np.isfinite(rows.entropy).all() or not _are_logprobs(rows):
        received, expected = "NaN or infinity", "finite statistics for every row that was asked for"
    elif rows.topk_ids.view(np.uint64).max() >= vocab_size:  # a negative id is a huge one there
        received, expected = "token ids outside the vocabulary", f"ids from 0 to {vocab_size - 1}"
    else:
        return
    raise NonFiniteAnswerError(
        f"{device} answered {received} in step {step}",
        expected=expected,
        remedy="check the bundle with lopa-export verify; if its files are whole, a bundle in float16 may have "
        "overflowed: export the checkpoint with --dtype fp32 or bf16",
    )


def _are_logprobs(rows: RowStatistics) -> bool:
    found = rows.topk_logprobs
    if np.isfinite(found).all():
        return True
    return bool(np.isfinite(found[..., 0]).all() and (np.isfinite(found) | np.isneginf(found)).all())
