"""What a toy learns waiting lines from: its sizes, its tokenizer, and questions with masked answers. Trains nothing."""

import json
import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from lopa.bench.evaluation.waiting_lines import MOST_LENGTH, NAMES, TASKS, line_question
from lopa.runtime.bundle.manifest import ModelDimensions
from tools.checkpoint.likeness import Likeness
from tools.checkpoint.tokenizer import tokenizer_from_likeness

TAUGHT = ("copy", "reverse", "replace_index", "replace_random", "shuffle")
LENGTH = 4
"""People in a line."""
ANSWER = 12
"""Positions of an answer: seven tokens of a line of four, then ends of text."""
_BOS = 1
LINES_TOY = Likeness(
    ModelDimensions(
        vocab_size=640,
        hidden_size=64,
        intermediate_size=192,
        layers=3,
        heads=4,
        kv_heads=4,
        head_size=16,
        max_positions=512,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
    ),
    mask=2,
    eos=0,
    bos=_BOS,
)
_LEAST_MASKED = 0.05
"""Of an answer, expected."""

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Lesson:
    """Questions, padded on the left to P positions, each with ANSWER positions of which some are masked."""

    ids: Int64
    """[questions, P + ANSWER]"""
    positions: Int64
    """[questions, P + ANSWER]"""
    visible: Bool
    """[questions, P + ANSWER, P + ANSWER], row and what it sees: prompts see prompts, answers see all."""
    masked: Bool
    """[questions, ANSWER]"""
    answers: Int64
    """[questions, ANSWER]"""


def line_words() -> list[str]:
    """Every word of the questions and answers, with the space before it; those without one behind the others."""
    draw = random.Random(0)
    texts = [line_question(task, MOST_LENGTH, draw).prompt for task in TASKS.values()]
    pieces = {
        text[start:end]
        for text in [*texts, *(f" {name}" for name in NAMES), *(f" {number + 1}" for number in range(MOST_LENGTH))]
        for _, (start, end) in ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str(text)
    }
    return sorted(pieces, key=lambda piece: (not piece.startswith(" "), piece))


def lines_tokenizer() -> Tokenizer:
    """In which every name is one token."""
    return Tokenizer.from_str(json.dumps(tokenizer_from_likeness(LINES_TOY, line_words())))


def lesson(tokenizer: Tokenizer, questions: int, draw: random.Random) -> Lesson:
    """`questions` of the TAUGHT tasks; `draw` decides everything."""
    asked = [line_question(TASKS[draw.choice(TAUGHT)], LENGTH, draw) for _ in range(questions)]
    prompts = [[_BOS, *tokenizer.encode(each.prompt).ids] for each in asked]
    right = [[*tokenizer.encode(f" {each.answer}").ids, *[LINES_TOY.eos] * ANSWER][:ANSWER] for each in asked]
    longest = max(map(len, prompts))
    padding = np.array([longest - len(prompt) for prompt in prompts])
    answers = np.array(right)
    places = np.arange(longest + ANSWER)
    real = places >= padding[:, None]
    rng = np.random.default_rng(draw.getrandbits(64))
    masked = rng.random(answers.shape) < np.maximum(rng.random((questions, 1)), _LEAST_MASKED)
    masked[~masked.any(axis=1), 0] = True
    shown = np.where(masked, LINES_TOY.mask, answers)
    ids = np.array([[LINES_TOY.eos] * int(skip) + prompt for skip, prompt in zip(padding, prompts, strict=True)])
    sees = (places[:, None] >= longest) | (places < longest)
    return Lesson(
        ids=np.concatenate([ids, shown], axis=1),
        positions=np.maximum(0, places - padding[:, None]),
        # A row of padding sees itself, or it would see nothing.
        visible=(sees & real[:, None, :]) | np.eye(len(places), dtype=np.bool_),
        masked=masked,
        answers=answers,
    )
