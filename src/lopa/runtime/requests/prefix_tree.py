"""The rows that requests share: a radix tree of token ids that holds the cached rows of finished blocks.

A node is one block of tokens. The path from a root to a node spells the tokens before and inside its block, which are
everything that its rows depend on. Roots have keys. Requests under different keys share nothing.

A request uses the nodes of its path until it ends, and used nodes stay. The others are evicted when space is needed,
the least recently used first. A node without users never has a child with users, and is evicted after its children.

A row is reused where everything that it attends to is equal. There are three cases:

- **Blocks counted from position 0, attention="block_causal"** (SDAR, LLaDA2, Fast-dLLM v2, Stable-DiffCoder). A row
  attends to its own block and earlier ones. A block is reused if all ids up to its end are equal.
- **A sliding block, attention="causal"** (WeDLM). A row attends to itself and earlier rows. Requests with any
  block size share rows, in blocks of the tree.
- **Blocks counted from the end of the prompt, attention="block_causal"** (D2F). The prompt is one block, and only whole
  prompts are reused. Answers are not, because their blocks begin elsewhere in the next prompt.

With attention="full" a row attends to masked positions behind it, so that it depends on the round. Reference mode
reproduces every step. Neither is reused. Temperature, seed, strategy and grammar do not change rows. If a row predicts
the next position, the statistics of a prompt's last row are needed too, and they depend on the temperature.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from lopa.runtime.contract import Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.options import DecodingParams
from lopa.runtime.sessions.session import KeptRows

PREFIX_CACHE_TOKENS = 4096
"""Default limit of stored tokens: 235 MB of Dream-7B in 16 bits, 10 MB of the tiny model in 32 bits."""
CANVAS = "canvas"
"""Strategy whose prompts are encoded causally."""
CAUSAL_BLOCK = 16
"""Tokens per block of the tree for causal rows."""


@dataclass(frozen=True)
class PrefixReuse:
    """The blocks of a request's tokens in the tree."""

    key: Hashable
    """Key of the root: everything besides ids that the rows or their statistics depend on."""
    block: int
    """Tokens per block."""
    limit: int
    """Maximum number of prompt tokens to reuse, a multiple of `block`."""
    whole_prompt: bool
    """True if the prompt is the only block."""

    def blocks(self, ids: Int64) -> Iterator[bytes]:
        """Return the complete blocks of `ids` [n] that may be reused at the start of a request."""
        for start in range(0, min(len(ids) // self.block * self.block, self.limit), self.block):
            yield ids[start : start + self.block].tobytes()


def prefix_reuse(
    prompt: int, params: DecodingParams, prediction_shift: int, cache_salt: str | None = None
) -> PrefixReuse | None:
    """Return how rows of a request with `prompt` tokens may be reused, or None if they may not.

    With `prediction_shift` 1 a row predicts the next position. The last row of the prompt is then computed again, if it
    predicts a masked position. Requests with different values of `cache_salt` share nothing.
    """
    if params.reference:
        return None
    last_row = 1 if prediction_shift else 0
    if params.strategy == CANVAS or (params.slides and params.attention == "causal"):
        key: Hashable = ("causal", cache_salt)
        return PrefixReuse(key, CAUSAL_BLOCK, (prompt - last_row) // CAUSAL_BLOCK * CAUSAL_BLOCK, whole_prompt=False)
    if params.attention != "block_causal":
        return None
    if params.alignment == "absolute":
        size = params.block_size
        return PrefixReuse(("blocks", size, cache_salt), size, (prompt - last_row) // size * size, whole_prompt=False)
    if params.alignment == "prompt":
        temperature = params.logits_temperature if prediction_shift else None
        return PrefixReuse(("prompt", temperature, cache_salt), prompt, prompt, whole_prompt=True)
    return None


@dataclass(eq=False)
class _Node:
    """One block: its rows in the session, and the blocks that continue it."""

    key: Hashable
    parent: "_Node | None"
    ids: bytes
    rows: KeptRows
    last: RowStatistics | None
    children: dict[bytes, "_Node"] = field(default_factory=dict)
    users: int = 1
    """Number of paths that contain the node."""


@dataclass(eq=False)
class Path:
    """The blocks at the start of one request's tokens that are in the tree. They stay until `PrefixTree.release`."""

    key: Hashable
    nodes: list[_Node] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Number of tokens of the blocks."""
        return sum(node.rows.count for node in self.nodes)

    @property
    def last(self) -> RowStatistics | None:
        """Statistics that were stored with the last block, if any."""
        return self.nodes[-1].last if self.nodes else None

    @property
    def rows(self) -> list[KeptRows]:
        """Rows of each block."""
        return [node.rows for node in self.nodes]


class PrefixTree:
    """The tree, up to a number of tokens. A block is given by the bytes of its token ids."""

    def __init__(self, max_tokens: int) -> None:
        """Hold at most `max_tokens` tokens; 0 holds none."""
        self._max_tokens = max_tokens
        self._roots: dict[Hashable, dict[bytes, _Node]] = {}
        self._unused: OrderedDict[_Node, None] = OrderedDict()
        """Nodes without users, those to evict first in front. Children are in front of their parents."""
        self.unused_tokens = 0
        """Number of tokens of these nodes."""
        self.tokens = 0
        """Number of tokens in the tree."""
        self.hits = 0
        """Number of `acquire` calls that found a block."""
        self.tokens_found = 0
        """Number of tokens that these calls found."""
        self.evictions = 0
        """Number of evicted blocks."""

    def count_tokens(self, key: Hashable, blocks: Iterable[bytes], *, in_use: bool = False) -> int:
        """Return the number of tokens that `acquire` would find, or of those `in_use`. This does not count as use."""
        return sum(node.rows.count for node in self._match(key, blocks) if node.users or not in_use)

    def acquire(self, key: Hashable, blocks: Iterable[bytes]) -> Path:
        """Return the longest path along `blocks`, the first blocks of a request's tokens. Its nodes are in use."""
        path = Path(key, self._match(key, blocks))
        for node in path.nodes:
            self._use(node)
        if path.nodes:
            self.hits += 1
            self.tokens_found += path.tokens
        return path

    def follow(self, path: Path, ids: bytes) -> bool:
        """Extend `path` by the block `ids` if the tree has it. Return True if so."""
        node = self._children(path).get(ids)
        if node is None:
            return False
        self._use(node)
        path.nodes.append(node)
        return True

    def has_space(self, tokens: int) -> bool:
        """Return True if a block of `tokens` tokens fits beside the blocks in use."""
        return self.tokens - self.unused_tokens + tokens <= self._max_tokens

    def add(self, path: Path, ids: bytes, rows: KeptRows, last: RowStatistics | None = None) -> None:
        """Extend `path` by a new block, which the tree does not have. `has_space` has to be True for it."""
        tokens = rows.count
        self.evict(self.tokens + tokens - self._max_tokens)
        node = _Node(path.key, path.nodes[-1] if path.nodes else None, ids, rows, last)
        children = self._roots.setdefault(path.key, {}) if node.parent is None else node.parent.children
        children[ids] = node
        self.tokens += tokens
        path.nodes.append(node)

    def evict(self, tokens: int) -> bool:
        """Drop unused blocks until `tokens` tokens are dropped or none is left. Return True if any was dropped."""
        before = self.tokens
        while self._unused and self.tokens > before - tokens:
            self._evict()
        return self.tokens < before

    def release(self, path: Path) -> None:
        """End the use of the path's nodes. They become the most recently used ones, and the path is empty."""
        while path.nodes:
            node = path.nodes.pop()
            node.users -= 1
            if not node.users:
                self._unused[node] = None
                self.unused_tokens += node.rows.count

    def _match(self, key: Hashable, blocks: Iterable[bytes]) -> list[_Node]:
        found: list[_Node] = []
        children = self._roots.get(key, {})
        for ids in blocks:
            node = children.get(ids)
            if node is None:
                break
            found.append(node)
            children = node.children
        return found

    def _children(self, path: Path) -> dict[bytes, _Node]:
        return path.nodes[-1].children if path.nodes else self._roots.get(path.key, {})

    def _use(self, node: _Node) -> None:
        if not node.users:
            del self._unused[node]
            self.unused_tokens -= node.rows.count
        node.users += 1

    def _evict(self) -> None:
        """Drop the least recently used block, which has no children."""
        node, _ = self._unused.popitem(last=False)
        siblings = self._roots[node.key] if node.parent is None else node.parent.children
        del siblings[node.ids]
        if node.parent is None and not siblings:
            del self._roots[node.key]
        self.tokens -= node.rows.count
        self.unused_tokens -= node.rows.count
        self.evictions += 1
