"""Draw the pictures of docs/concepts/lopa-in-pictures.md and the README from real decodes of a bundle.

Usage: python -m tools.pictures BUNDLE FOLDER

Writes blocks.svg, step.svg, mask.svg and decode.svg, an animation. The bundle is the one of the embedded toy model.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np

from lopa import Decoder, DoneEvent, Step
from lopa.runtime.state.branch import Block, Branch

PROMPT = (
    "Question: Amir buys 5 buttons for 3 dollars each and some cards for 2 dollars. A coupon takes 4 dollars off. "
    "How much does Amir pay?\nAnswer:"
)
BRANCHES = 4
MAX_NEW_TOKENS = 64
TICK = 0.9
"""Seconds per forward in the animation."""
PAUSE = 3
"""Forwards for which the animation shows the finished answers before it starts again."""
_COLUMNS = 16
_CELL, _HEIGHT, _ROW = 50, 24, 28
"""Width and height of a token's cell, and the distance of rows, in pixels."""
_CACHED, _UNMASKED, _NEW, _LOOKAHEAD, _MASKED = "#e2e8f0", "#ffffff", "#bbf7d0", "#fde68a", "#cbd5e1"
_BOLD = " font-weight='600'"
_NO_EDGE = " class='mask'"
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#0f172a} .token{font:11px ui-monospace,Menlo,Consolas,monospace;"
    "text-anchor:middle} rect{stroke:#94a3b8} .mask{stroke:none}"
)


@dataclass(frozen=True)
class Decode:
    """A recorded decode: its steps, and the text of each token id that occurs."""

    title: str
    prompt: int
    """Tokens of the prompt."""
    steps: tuple[Step, ...]
    texts: dict[int, str]
    mask: int
    """Id of the mask token."""
    answer: tuple[int, ...]
    """Ids of the finished answer."""


def recorded(
    decoder: Decoder, title: str, branches: int, attention: Literal["full", "block_causal"] = "full"
) -> Decode:
    """Decode PROMPT greedily with `branches` branches and record every step."""
    steps: list[Step] = []
    done = None
    for event in decoder.stream(
        PROMPT, branches=branches, attention=attention, max_new_tokens=MAX_NEW_TOKENS, on_step=steps.append
    ):
        done = event if isinstance(event, DoneEvent) else done
    assert done is not None
    ids = {int(token) for step in steps for branch in step.branches for token in branch.tokens} | {
        *done.result.token_ids
    }
    texts = {token: decoder.tokenizer.decode([token]) for token in ids}
    mask = decoder.bundle.manifest.special_tokens.mask
    return Decode(title, len(done.result.prompt_ids), tuple(steps), texts, mask, tuple(done.result.token_ids))


def blocks_picture(decode: Decode, number: int) -> str:
    """Return the SVG of the anchor before step `number`: the prompt and every block that is open."""
    anchor = decode.steps[number - 1].branches[-1]
    lines, top = [], 24
    for block in anchor.blocks:
        if block.end <= decode.prompt:
            name, span = (
                f"prompt: {block.end} tokens, cached (last {_COLUMNS} shown)",
                range(block.end - _COLUMNS, block.end),
            )
        else:
            name, span = f"block of {block.end - block.start}: {_state(block)}", range(block.start, block.end)
        lines.append(_label(10, top - 8, name))
        lines += _grid(_cells(decode, anchor, span), 10, top)
        top += -(-len(span) // _COLUMNS) * _ROW + 30
    return _svg(20 + _COLUMNS * _CELL, top - 20, lines)


def step_picture(decode: Decode, number: int) -> str:
    """Return the SVG of step `number`: a row for each branch, its lookahead token and confidence, and the winner."""
    step = decode.steps[number - 1]
    first = next(block.start for block in step.branches[-1].blocks if block.masks)
    shown = range(first, min(first + 2 * _COLUMNS, len(step.branches[-1].tokens)))
    lines, top = [_label(10, 18, f"Step {number}: one forward verifies {len(step.branches)} branches")], 44
    order = [len(step.branches) - 1, *range(len(step.branches) - 1)]
    for index in order:
        branch = step.branches[index]
        name = "anchor" if branch.lookahead is None else f"lookahead branch {index + 1}"
        won = "  ✓ wins" if index == step.winner else ""
        lines.append(_label(10, top - 6, f"{name}: confidence {step.confidences[index]:.3f}{won}", bold=bool(won)))
        new = {
            int(position): int(token)
            for position, token in zip(step.unmasked.positions, step.unmasked.tokens, strict=True)
        }
        cells = []
        for position in shown:
            token = int(branch.tokens[position])
            if branch.lookahead is not None and position == branch.lookahead.position:
                cells.append((_shown(decode, branch.lookahead.token), _LOOKAHEAD))
            elif token != decode.mask:
                cells.append((_shown(decode, token), _UNMASKED))
            elif index == step.winner and position in new:
                cells.append((_shown(decode, new[position]), _NEW))
            else:
                cells.append(("", _MASKED))
        lines += _grid(cells, 10, top)
        top += -(-len(cells) // _COLUMNS) * _ROW + 28
    legend = (
        (_UNMASKED, "unmasked before"),
        (_LOOKAHEAD, "lookahead token"),
        (_NEW, "unmasked by this step"),
        (_MASKED, "masked"),
    )
    for place, (colour, text) in enumerate(legend):
        lines += [_box(10 + 190 * place, top - 8, 14, 14, colour), _label(30 + 190 * place, top + 4, text)]
    return _svg(20 + _COLUMNS * _CELL, top + 20, lines)


def mask_picture(decode: Decode, number: int) -> str:
    """Return the SVG of the attention mask of step `number`'s anchor: which window tokens each query token sees."""
    rows = decode.steps[number - 1].rows
    size, mask = rows.lengths[-1], rows.masks[-1]
    side = max(2, min(8, 512 // size))
    lines = [
        _label(10, 18, f"Window of {size} query tokens behind {rows.prefix} cached tokens: dark sees, light does not")
    ]
    for row in range(size):
        for begin, end in _runs(mask[row]):
            lines.append(_box(10 + side * begin, 30 + side * row, side * (end - begin), side, "#334155", edge=False))
    lines.append(_box(10, 30, side * size, side * size, "none"))
    return _svg(max(20 + side * size, 620), 44 + side * size, lines)


def decode_animation(decodes: Sequence[Decode]) -> str:
    """Return the SVG animation of `decodes`, one below the other. Each advances by one forward per tick."""
    ticks = max(len(decode.steps) for decode in decodes) + PAUSE
    lines, top = [], 26
    for decode in decodes:
        lines.append(
            _label(10, top, f"{decode.title}: {len(decode.answer)} tokens in {len(decode.steps)} forwards", bold=True)
        )
        top += 12
        for place, (token, step) in enumerate(_times(decode)):
            left, y = 10 + place % _COLUMNS * _CELL, top + place // _COLUMNS * _ROW
            lines += [
                _box(left, y, _CELL - 4, _HEIGHT, _MASKED),
                *_appearing(left, y, _shown(decode, token), step, ticks),
            ]
        top += -(-len(decode.answer) // _COLUMNS) * _ROW + 34
    return _svg(20 + _COLUMNS * _CELL, top - 16, lines)


def _times(decode: Decode) -> list[tuple[int, int]]:
    """Return token and number of the step that wrote it for each position of the answer."""
    written = {}
    for step in decode.steps:
        for position in step.unmasked.positions.tolist():
            written[position] = step.number
        for look in (step.branches[step.winner].lookahead, step.last):
            if look is not None:
                written[look.position] = step.number
    return [(token, written[decode.prompt + place]) for place, token in enumerate(decode.answer)]


def _state(block: Block) -> str:
    return f"active, {block.masks} masked" if block.masks else "finished, enters the cache with the next forward"


def _cells(decode: Decode, branch: Branch, positions: range) -> list[tuple[str, str]]:
    """Return text and colour of the cells of `positions`."""
    return [
        ("", _MASKED)
        if branch.tokens[position] == decode.mask
        else (_shown(decode, int(branch.tokens[position])), _CACHED if position < decode.prompt else _UNMASKED)
        for position in positions
    ]


def _shown(decode: Decode, token: int) -> str:
    text = decode.texts[token].replace("\n", "⏎").strip() or "␣"
    return text if len(text) <= 6 else text[:5] + "…"


def _runs(row: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the runs of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _grid(cells: Sequence[tuple[str, str]], left: int, top: int) -> Iterator[str]:
    """Yield the elements of `cells`, texts with their colours, in rows of _COLUMNS."""
    for place, (text, colour) in enumerate(cells):
        x, y = left + place % _COLUMNS * _CELL, top + place // _COLUMNS * _ROW
        yield _box(x, y, _CELL - 4, _HEIGHT, colour)
        if text:
            yield f"<text x='{x + (_CELL - 4) / 2:g}' y='{y + 16}' class='token'>{escape(text)}</text>"


def _appearing(left: int, top: int, text: str, step: int, ticks: int) -> Iterator[str]:
    """Yield a token that appears with forward `step` in green and turns white with the next."""
    share = [step / ticks, min(1, (step + 1) / ticks)]
    times = f"keyTimes='0;{share[0]:.4f};1' dur='{ticks * TICK:g}s' repeatCount='indefinite' calcMode='discrete'"
    colours = f"keyTimes='0;{share[1]:.4f};1' dur='{ticks * TICK:g}s' repeatCount='indefinite' calcMode='discrete'"
    yield f"<g><animate attributeName='opacity' values='0;1;1' {times}/>"
    yield _box(left, top, _CELL - 4, _HEIGHT, _UNMASKED).removesuffix("/>") + ">"
    yield f"<animate attributeName='fill' values='{_NEW};{_UNMASKED};{_UNMASKED}' {colours}/></rect>"
    yield f"<text x='{left + (_CELL - 4) / 2:g}' y='{top + 16}' class='token'>{escape(text)}</text></g>"


def _box(left: float, top: float, width: float, height: float, fill: str, *, edge: bool = True) -> str:
    round_ = " rx='4'" if height > 10 and fill != "none" else ""
    size = f"x='{left:g}' y='{top:g}' width='{width:g}' height='{height:g}'"
    return f"<rect {size}{round_} fill='{fill}'{'' if edge else _NO_EDGE}/>"


def _label(left: float, base: float, text: str, *, bold: bool = False) -> str:
    return f"<text x='{left:g}' y='{base:g}'{_BOLD if bold else ''}>{escape(text)}</text>"


def _svg(width: int, height: int, lines: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>"
    background = f"<rect width='{width}' height='{height}' fill='#f8fafc' class='mask'/>"
    return "\n".join([head, f"<style>{_STYLE}</style>", background, *lines, "</svg>", ""])


def pictures_of_bundle(bundle: Path) -> dict[str, str]:
    """Return the text of each picture by its file name."""
    with Decoder.open(bundle) as decoder:
        lopa = recorded(decoder, f"LoPA, {BRANCHES} branches per forward", BRANCHES)
        d2f = recorded(decoder, "D2F, 1 branch per forward", 1)
        causal = recorded(decoder, "block-causal", 1, "block_causal")
    won = [step for step in lopa.steps if len(step.branches) == BRANCHES and step.winner < BRANCHES - 1]
    shown = max(won, key=lambda step: int(step.branches[-1].unmasked.sum())).number
    masked = min(causal.steps, key=lambda step: float(step.rows.masks[-1].mean())).number
    return {
        "blocks.svg": blocks_picture(lopa, shown),
        "step.svg": step_picture(lopa, shown),
        "mask.svg": mask_picture(causal, masked),
        "decode.svg": decode_animation((d2f, lopa)),
    }


def main(bundle: Path, folder: Path) -> None:
    """Write the pictures into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pictures_of_bundle(bundle).items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
