"""Session that runs a step as the published code does: branches one after another in PyTorch eager mode.

The decoder of lopa.runtime uses the eager model's statistics. Both sides of the speed benchmark therefore make the same
steps and differ only in the forward. One forward does the following:

- It calls the model once per branch with that branch's length and no padding.

- Optionally it batches the branches of a request, which the published code does not do.

- Every layer of every call concatenates cached and window rows.

- The logits of all window rows give the softmax, best tokens and entropy of the masked positions.

The published loop has further costs that this one avoids. It appends committed rows once per branch (here once, for
the winner). It computes confidences again for unmasking and, row by row, for the lookahead candidates. It copies its
branches, which are dictionaries, and collects garbage in every step.
"""

import copy

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lopa.bench.speed.eager_model import EagerModel
from lopa.runtime.contract import TOP_K, Bool, CacheRows, Int64, Statistics, WindowBatch, float32_from_stored
from lopa.runtime.contract.packed_batch import PackedBatch, padded_batch
from lopa.runtime.sessions.session import KeepsOnHost, check_kept_rows, check_prefix_count
from lopa.runtime.sessions.tickets import Ticket, Tickets

_BranchStatistics = tuple[Tensor, Tensor, Tensor]
"""One branch's best ids [Q, K], their log-probabilities [Q, K], and entropies [Q]."""
_BranchRows = dict[tuple[int, int], list[tuple[Tensor, Tensor]]]
"""New keys and values [1, Hkv, W, D] of every layer, by request and branch."""


class EagerSession(KeepsOnHost):
    """lopa.runtime.sessions.session.Session on the device of the model's weights, in their data type."""

    def __init__(self, model: EagerModel, *, together: bool = False) -> None:
        """Create a session for `model`. With `together` the branches of a request are one batch."""
        self.model = model
        self._together = together
        self._dtype = model.dtype
        self._device = model.device
        self._caches: dict[int, DynamicCache] = {}
        self._tickets = Tickets[_BranchRows]()

    @property
    def device(self) -> str:
        """Name of the engine."""
        return "eager"

    def start(self, batch: PackedBatch) -> Ticket:
        """Check and keep `batch`. Raises like Session.start."""
        return self._tickets.start(batch)

    def wait(self, ticket: Ticket) -> Statistics:
        """Run every branch of every request, one after another or batched by request. Raises like Session.wait."""
        padded = padded_batch(self._tickets.take(ticket))
        batch, new_rows = padded.batch, _BranchRows()
        branches = batch.input_ids.shape[1]
        calls = [range(branches)] if self._together else [range(branch, branch + 1) for branch in range(branches)]
        with torch.inference_mode():
            found = [
                each
                for slot in range(len(batch.requests))
                for chosen in calls
                for each in self._branches(batch, slot, chosen, new_rows)
            ]
            ids, logprobs, entropy = map(torch.stack, zip(*found, strict=True))
            wanted = batch.logits_index.shape
            statistics = Statistics(
                topk_ids=ids.view(*wanted, TOP_K).cpu().numpy(),
                topk_logprobs=logprobs.view(*wanted, TOP_K).cpu().numpy(),
                entropy=entropy.view(*wanted).cpu().numpy(),
            )
        self._tickets.keep(ticket, new_rows)
        return padded.packed(statistics)

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        """Append rows of a forward to the request's cache. Raises like Session.commit."""
        self.append_rows(request, self.read_rows(ticket, request, branch, count))

    def read_rows(self, ticket: Ticket, request: int, branch: int, count: int) -> CacheRows:
        """Return rows of a forward, in float32. Raises like Session.read_rows."""
        rows, _ = self._tickets.window(ticket, request, branch, count)
        return _host_rows(rows[request, branch], 0, count)

    def release(self, ticket: Ticket) -> None:
        """End the use of the forward's new rows."""
        self._tickets.release(ticket)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows [Hkv, n, D] of every layer, key before value, to the request's cache."""
        self._tickets.check_idle(request)
        parts = [
            torch.from_numpy(float32_from_stored(array))[None].to(self._device, self._dtype) for array in rows.layers
        ]
        cache = self._caches.setdefault(request, DynamicCache())
        with torch.inference_mode():
            for layer, (key, value) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
                cache.update(key, value, layer)

    def keep_rows(self, request: int, start: int, count: int) -> CacheRows:
        """Return committed rows in float32. Raises like Session.keep_rows."""
        check_kept_rows(self.prefix_length(request), start, count)
        return _host_rows([(layer.keys, layer.values) for layer in self._caches[request].layers], start, count)

    def shorten(self, request: int, count: int) -> None:
        """Shorten the request's cache, as Session.shorten does."""
        self._tickets.check_idle(request)
        check_prefix_count(self.prefix_length(request), count)
        if not count:
            self._caches.pop(request, None)
        else:
            self._caches[request].crop(count - self.prefix_length(request))

    def prefix_length(self, request: int) -> int:
        """Return the number of cached rows of the request, 0 for an unknown one."""
        return int(self._caches[request].get_seq_length()) if request in self._caches else 0

    def free(self, request: int) -> None:
        """Remove the request, if it exists."""
        self._tickets.free(request)
        self._caches.pop(request, None)

    def close(self) -> None:
        """Remove all requests."""
        self._caches.clear()
        self._tickets.clear()

    def _branches(self, batch: WindowBatch, slot: int, chosen: range, new_rows: _BranchRows) -> list[_BranchStatistics]:
        """Return the statistics of the N branches `chosen` from one call of the model, and add their `new_rows`."""
        request = batch.requests[slot]
        index = batch.logits_index[slot, chosen.start : chosen.stop]
        window_mask = batch.window_mask[slot, chosen.start : chosen.stop]
        length = max(real_length(one, wanted) for one, wanted in zip(window_mask, index, strict=True))
        cached = self.prefix_length(request)
        cache = self._copied_cache(request, len(chosen))
        mask = torch.zeros(len(chosen), 1, length, cached + length, dtype=self._dtype, device=self._device)
        mask[..., cached:].masked_fill_(~self._tensor(window_mask[:, None, :length, :length]), float("-inf"))
        logits = self.model(
            self._tensor(batch.input_ids[slot, chosen.start : chosen.stop, :length]),
            self._tensor(batch.position_ids[slot, chosen.start : chosen.stop, :length]),
            mask,
            cache,
        )
        temperature = float(batch.temperature[slot])
        for n, branch in enumerate(chosen):
            new_rows[request, branch] = [
                (layer.keys[n : n + 1, :, cached:], layer.values[n : n + 1, :, cached:]) for layer in cache.layers
            ]
        return [_statistics_from_logits(logits[n, self._tensor(index[n])], temperature) for n in range(len(chosen))]

    def _copied_cache(self, request: int, windows: int) -> DynamicCache:
        """Return a cache for one call with `windows` windows, which reads the request's rows without a copy."""
        copied = DynamicCache()
        if request not in self._caches:
            copied.layers = [DynamicLayer() for _ in self.model.layers]
            return copied
        copied.layers = list(map(copy.copy, self._caches[request].layers))
        for layer in copied.layers:
            layer.keys, layer.values = (part.expand(windows, -1, -1, -1) for part in (layer.keys, layer.values))
        return copied

    def _tensor(self, array: Bool | Int64) -> Tensor:
        """Return a copy on the model's device."""
        return torch.tensor(array, device=self._device)


def real_length(window_mask: Bool, wanted: Int64) -> int:
    """Return the number of window rows without the trailing padding.

    A padding row sees only itself in `window_mask` [W, W], and no other row sees it. Rows in `wanted` [Q] always
    count as real.
    """
    others = window_mask & ~np.eye(len(window_mask), dtype=np.bool_)
    real = np.flatnonzero(others.any(axis=0) | others.any(axis=1))
    return 1 + max(int(real.max(initial=0)), int(wanted.max()))


def _host_rows(layers: list[tuple[Tensor, Tensor]], start: int, count: int) -> CacheRows:
    """Return a copy of rows of [1, Hkv, n, D], in float32."""
    parts = (part[0, :, start : start + count] for layer in layers for part in layer)
    return CacheRows(tuple(part.float().cpu().numpy().copy() for part in parts))


def _statistics_from_logits(logits: Tensor, temperature: float) -> _BranchStatistics:
    """Return the statistics of rows [Q, V]."""
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    best = torch.topk(logprobs, TOP_K, dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return best.indices, best.values, entropy
