"""Opening, completing and caching blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.params import context_of

from lopa.runtime.state.branch import Block, BlockState, Branch, Lookahead
from lopa.runtime.state.layout import Layout
from lopa.runtime.state.pipeline import next_anchor, next_lookahead, with_activated_blocks, with_new_block

ACTIVE, TO_CACHE, IN_CACHE = BlockState.ACTIVE, BlockState.TO_CACHE, BlockState.IN_CACHE


MASK = 9


def prompt_block(length: int) -> Block:
    return Block(0, length, 0, TO_CACHE, True)


def branch_of(unmasked: list[bool], blocks: tuple[Block, ...], *, slides: bool = False) -> Branch:
    layout = Layout(blocks[0].end, blocks[0].end, 9, len(unmasked), slides=slides)
    return Branch(np.where(unmasked, 1, MASK), np.array(unmasked), blocks, False, None, layout)


def test_complete_means_that_the_block_before_is_nearly_unmasked_and_stays_set() -> None:
    def blocks(masks: int, fully_activated: bool) -> tuple[Block, ...]:
        return (
            prompt_block(2),
            Block(2, 34, masks, ACTIVE, True),
            Block(34, 66, 32, ACTIVE, fully_activated),
        )

    assert not with_activated_blocks(blocks(2, False), 0.95)[2].fully_activated  # 30 of 32
    assert with_activated_blocks(blocks(1, False), 0.95)[2].fully_activated  # 31 of 32
    assert with_activated_blocks(blocks(32, True), 0.95)[2].fully_activated


def test_a_first_block_without_prompt_blocks_is_complete() -> None:
    assert with_activated_blocks((prompt_block(0), Block(0, 4, 4, ACTIVE, False)), 0.5)[1].fully_activated


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    bits=st.lists(st.booleans(), min_size=40, max_size=40),
    finish=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_states_stay_in_order_and_masks_are_recounted(sizes: list[int], bits: list[bool], finish: list[bool]) -> None:
    """Blocks are cached, then due, then active, for any unmasked positions. The masks equal a plain count."""
    blocks: tuple[Block, ...] = (prompt_block(3),)
    for size in sizes:
        blocks = with_new_block(blocks, size)
    unmasked = ([True] * 3 + bits)[: blocks[-1].end]
    unsettled = {block.start for block, chosen in zip(blocks, finish, strict=False) if not chosen}
    blocks = tuple(block._replace(is_unsettled=block.start in unsettled) for block in blocks)
    after = next_anchor(branch_of(unmasked, blocks)).blocks
    order = [(IN_CACHE, TO_CACHE, ACTIVE).index(block.state) for block in after]
    assert order == sorted(order)
    for block in after[1:]:
        assert block.masks == sum(not unmasked[position] for position in range(block.start, block.end))
        assert block.state is not TO_CACHE or (block.masks == 0 and block.start not in unsettled)


@given(
    bits=st.lists(st.booleans(), min_size=9, max_size=9),
    ahead=st.integers(0, 8),
    due=st.integers(0, 3),
)
def test_a_block_slides_behind_the_unmasked_run_of_all_branches(bits: list[bool], ahead: int, due: int) -> None:
    """A prompt of 4 and due positions are cached. A token on only one branch moves nothing."""
    common = [True] * (4 + due) + bits
    position = 4 + due + ahead
    blocks = with_new_block((prompt_block(4),), 9) if not due else (
        Block(0, 4, 0, IN_CACHE, True), Block(4, 4 + due, 0, TO_CACHE, True), Block(4 + due, 13 + due, 9, ACTIVE, True)
    )  # fmt: skip
    anchor = next_anchor(branch_of(common, blocks, slides=True))
    if not common[position]:
        anchor = next_lookahead(anchor, Lookahead(0, position, 1, 0.5), context_of(mask_token=MASK))
    after = anchor.blocks
    run = 4 + due + (bits.index(False) if False in bits else 9)
    expected = [(0, 4 + due, IN_CACHE), (4 + due, run, TO_CACHE), (run, 13 + due, ACTIVE)]
    assert [(block.start, block.end, block.state) for block in after] == [
        each for each in expected if each[0] < each[1]
    ]
    assert after[-1].masks == np.count_nonzero(~anchor.unmasked[run:])
    assert all(block.fully_activated for block in after)
