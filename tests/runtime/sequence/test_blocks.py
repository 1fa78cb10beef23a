import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lopa.runtime.sequence.blocks import (
    Block,
    BlockState,
    active,
    after_round,
    prompt_block,
    to_cache,
    with_complete_flags,
    with_new_block,
)

ACTIVE, TO_CACHE, IN_CACHE = BlockState.ACTIVE, BlockState.TO_CACHE, BlockState.IN_CACHE


def test_a_new_block_follows_the_last() -> None:
    blocks = with_new_block(with_new_block((prompt_block(5),), 4), 3)
    assert [(block.start, block.end, block.masks, block.state) for block in blocks] == [
        (0, 5, 0, TO_CACHE),
        (5, 9, 4, ACTIVE),
        (9, 12, 3, ACTIVE),
    ]
    assert active(blocks) == blocks[1:]
    assert to_cache(blocks) == blocks[:1]


def test_complete_means_that_the_block_before_is_nearly_decoded_and_is_never_taken_back() -> None:
    def blocks(masks: int, complete: bool) -> tuple[Block, ...]:
        return (
            prompt_block(2),
            Block(2, 34, masks, ACTIVE, True),
            Block(34, 66, 32, ACTIVE, complete),
        )

    assert not with_complete_flags(blocks(2, False), 0.95)[2].complete  # 30 of 32
    assert with_complete_flags(blocks(1, False), 0.95)[2].complete  # 31 of 32
    assert with_complete_flags(blocks(32, True), 0.95)[2].complete


def test_a_block_behind_no_whole_block_of_the_prompt_is_complete() -> None:
    assert with_complete_flags((prompt_block(0), Block(0, 4, 4, ACTIVE, False)), 0.5)[1].complete


def test_finished_blocks_fall_due_in_order_only() -> None:
    blocks = (
        prompt_block(2),
        Block(2, 4, 1, ACTIVE, True),
        Block(4, 6, 1, ACTIVE, False),
        Block(6, 8, 2, ACTIVE, False),
    )
    decided = np.array([1, 1, 1, 1, 1, 1, 0, 1], bool)
    states = [block.state for block in after_round(blocks, decided, frozenset({2, 4}))]
    assert states == [IN_CACHE, TO_CACHE, TO_CACHE, ACTIVE]
    # A block that only a lookahead token completed waits, and with it every block behind it.
    states = [block.state for block in after_round(blocks, decided, frozenset({4}))]
    assert states == [IN_CACHE, ACTIVE, ACTIVE, ACTIVE]
    assert [block.masks for block in after_round(blocks, decided, frozenset())] == [0, 0, 0, 1]


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    bits=st.lists(st.booleans(), min_size=40, max_size=40),
    finish=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_states_stay_in_order_and_masks_are_recounted(sizes: list[int], bits: list[bool], finish: list[bool]) -> None:
    """Whatever was decided: cached, then due, then active blocks; masks equal a plain count."""
    blocks: tuple[Block, ...] = (prompt_block(3),)
    for size in sizes:
        blocks = with_new_block(blocks, size)
    decided = np.array([True] * 3 + bits)[: blocks[-1].end]
    may_finish = frozenset(block.start for block, chosen in zip(blocks, finish, strict=False) if chosen)
    after = after_round(blocks, decided, may_finish)
    order = [(IN_CACHE, TO_CACHE, ACTIVE).index(block.state) for block in after]
    assert order == sorted(order)
    for block in after[1:]:
        assert block.masks == sum(not decided[position] for position in range(block.start, block.end))
        assert block.state is not TO_CACHE or (block.masks == 0 and block.start in may_finish)
