"""Decodes of every question with every configuration, kept in a file so that an interrupted run continues."""

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lopa.bench.eval_set import EvalItem
from lopa.bench.progress import BenchProgress
from lopa.runtime import BadInputError, Decoder
from lopa.runtime.strategy import register_strategy
from tools.rules.configurations import RuleConfig
from tools.rules.consistency import CONSISTENCY
from tools.rules.info_gain import INFO_GAIN


@dataclass(frozen=True)
class RuleOutcome:
    """Outcome of one question with one configuration."""

    question: int
    """Index of the question in the evaluation file."""
    config: str
    """Key of the configuration."""
    right: bool
    tokens: int
    """Generated tokens up to and including the first end-of-text."""
    steps: int
    """Number of forwards."""
    cpu: float
    """CPU seconds of this process, which other processes of the machine hardly change."""


@dataclass(frozen=True)
class RunOfRules:
    """The inputs that all outcomes of a file share. They are its first line."""

    bundle: str
    """SHA-256 digest of the bundle's manifest."""
    evaluation: str
    """SHA-256 digest of the evaluation file."""
    max_new_tokens: int
    new_questions: int = 0
    """Number of new questions made from the file; 0 for its own questions."""


Outcomes = Mapping[str, Mapping[int, RuleOutcome]]
"""Outcomes by configuration and question."""


def decode_rules(
    decoder: Decoder,
    items: Sequence[EvalItem],
    configs: Sequence[RuleConfig],
    kept: Path,
    run: RunOfRules,
    progress: BenchProgress,
) -> Outcomes:
    """Decode `items` with all `configs` and return the outcomes. Outcomes in the file `kept` are not decoded again.

    Questions come in a random order, and each is decoded with all configurations, in a random order, before the next
    one. Slow phases of the machine thus affect all configurations. Raises BadInputError for a file of another run.
    """
    register_strategy(INFO_GAIN)
    register_strategy(CONSISTENCY)
    known = outcomes_from_file(kept, run)
    found = {config.key: dict(known.get(config.key, {})) for config in configs}
    order = random.Random(0)
    questions = order.sample(range(len(items)), len(items))
    options = {config.key: decoder.config(max_new_tokens=run.max_new_tokens, **config.options) for config in configs}
    list(decoder.generate([items[0].prompt], options[configs[0].key]))  # the first decode allocates memory
    with kept.open("a", encoding="utf-8") as file:
        if not file.tell():
            file.write(json.dumps(asdict(run)) + "\n")
        for done, question in enumerate(questions, start=1):
            for key in order.sample(list(options), len(options)):
                if question in found[key]:
                    continue
                began = time.process_time()
                (result,) = decoder.generate([items[question].prompt], options[key])
                cpu = time.process_time() - began
                right = items[question].is_right(result.text)
                outcome = RuleOutcome(question, key, right, result.tokens, result.steps, cpu)
                found[key][question] = outcome
                file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()
            progress(done)
    return found


def outcomes_from_file(path: Path, run: RunOfRules) -> dict[str, dict[int, RuleOutcome]]:
    """Return the outcomes that `decode_rules` kept in a file, none if it does not exist.

    A last line that an interrupted run did not finish is removed from the file. Raises BadInputError for a file of
    another run, and for other content.
    """
    if not path.exists():
        return {}
    content = path.read_bytes()
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    found: dict[str, dict[int, RuleOutcome]] = {}
    try:
        received = RunOfRules(**json.loads(lines[0])) if lines else run
        for line in lines[1:]:
            outcome = RuleOutcome(**json.loads(line))
            found.setdefault(outcome.config, {})[outcome.question] = outcome
    except (TypeError, ValueError) as error:
        raise BadInputError(
            f"{path} holds no outcomes: {error}", expected="a file of this command", remedy="choose another --outcomes"
        ) from error
    if received != run:
        raise BadInputError(
            f"{path} holds outcomes of another run: {received}", expected=f"{run}", remedy="choose another --outcomes"
        )
    os.truncate(path, content.rfind(b"\n") + 1)
    return found
