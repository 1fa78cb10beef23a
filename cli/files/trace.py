"""A step as one line of JSON: what `generate --trace` writes, for readers, plots and the gear planner."""

from dataclasses import asdict
from typing import Any

from lopa.runtime.algorithm.decoding import Step


def record_from_step(step: Step) -> dict[str, Any]:
    """The step's branches, windows, confidences, winner, fills and seconds, as plain JSON values.

    "seconds" are those of each phase; "split", with several devices only, tells the forward's by device.
    """
    windows = step.windows
    return {
        "step": step.number,
        "window_start": windows.start,
        "prefix": windows.start,
        "commit": windows.commit,
        "window": max(windows.lengths),
        "rows_wanted": int(windows.wanted.shape[1]),
        "branches": [
            {
                "lookahead": None
                if branch.lookahead is None
                else {
                    "rank": branch.lookahead.rank,
                    "position": branch.lookahead.position,
                    "token": branch.lookahead.token,
                    "confidence": branch.lookahead.confidence,
                },
                "window": length,
                "undecided": len(undecided),
                "confidence": confidence,
            }
            for branch, length, undecided, confidence in zip(
                step.branches, windows.lengths, windows.undecided, step.confidences, strict=True
            )
        ],
        "blocks": [
            [block.start, block.end, block.masks, block.state.value, block.complete]
            for block in step.branches[-1].blocks
        ],
        "winner": step.winner,
        "fills": [
            [int(position), int(token)] for position, token in zip(step.fills.positions, step.fills.tokens, strict=True)
        ],
        "seconds": step.seconds,
        **({} if step.split is None else {"split": asdict(step.split)}),
    }
