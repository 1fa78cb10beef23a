"""One tuning run: search on a bundle, then on further precisions of it, and the timing of the chosen presets."""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lopa.bench.comparison.candidates import (
    CONTROL,
    Candidate,
    control_candidate,
    distinct_candidates,
    exact_candidates,
    first_candidates,
    neighbors,
)
from lopa.bench.comparison.decodes import Decodes
from lopa.bench.comparison.ladder import MIN_QUESTIONS, PILOT_QUESTIONS, Ladder, Verdict
from lopa.bench.comparison.outcomes import DecodeOutcome
from lopa.bench.comparison.paired_statistics import (
    Interval,
    interval_from_resamples,
    pareto_front,
    resampled_ratios,
)
from lopa.bench.comparison.tuning_report import PresetRow, TuningRow
from lopa.bench.eval_set import EvalItem, eval_set_from_jsonl, item_from_object, records_from_jsonl
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError

REFERENCE_KIND = "text"
_PROMPTS = '{"prompt": text} or {"messages": chat}'


def scored_questions(path: Path, *, limit: int | None) -> tuple[EvalItem, ...]:
    """Return the questions of an evaluation set that have a scoring, at most `limit`.

    Raises BadInputError for an invalid file and for fewer than MIN_QUESTIONS.
    """
    items = tuple(item for item in eval_set_from_jsonl(path, chats=True) if item.verdict)
    remedy = "add questions of kind math or with the field scoring, or use --reference-text with prompts only"
    _check_count(path, len(items), "questions with a scoring", remedy)
    return items[:limit]


def reference_prompts(path: Path, *, limit: int | None) -> tuple[EvalItem, ...]:
    """Return the prompts of a file of JSON lines, at most `limit`.

    Raises BadInputError for an invalid file and for fewer than MIN_QUESTIONS.
    """
    items: list[EvalItem] = []
    remedy = "check the path, or correct the line"
    for source, value in records_from_jsonl(path, dict[str, Any], expected=_PROMPTS, remedy=remedy):
        item = item_from_object({"answer": "", **value, "kind": REFERENCE_KIND}, source=source, chats=True)
        items.append(replace(item, task_id=str(len(items))))  # with a task_id, outcomes keep the text
    _check_count(path, len(items), "prompts", "add prompts")
    return tuple(items[:limit])


def _check_count(path: Path, count: int, what: str, remedy: str) -> None:
    if count < MIN_QUESTIONS:
        raise BadInputError(
            f"{path} has {count} {what}",
            expected=f"at least {MIN_QUESTIONS}, since a few questions cannot show that a score is not lower",
            remedy=remedy,
        )


BALANCED, FAST, EXACT = "balanced", "fast", "exact"
_TIMED_QUESTIONS = 16


@dataclass(frozen=True)
class Tuned:
    """Result of a tuning run."""

    rows: tuple[TuningRow, ...]
    presets: tuple[PresetRow, ...]
    others: Mapping[str, PresetRow]
    """Further bundles by name that are faster than the control at a score that is not lower, with `balanced` options.
    """
    is_complete: bool


class TuningRun:
    """A search with the questions of `decodes` in random order by `seed`."""

    def __init__(
        self,
        decoder: Decoder,
        decodes: Decodes,
        *,
        questions: int,
        seed: int,
        max_loss: float,
        others: Mapping[str, Decoder] | None = None,
        named: Sequence[Candidate] = (),
    ) -> None:
        """Prepare a search on `decoder`. `others` are further precisions of its bundle, by name.

        The `named` candidates, if there are any, replace the first list of candidates.
        """
        self._first = distinct_candidates(decoder, named) if named else first_candidates(decoder)
        self._decoder, self._decodes, self._others = decoder, decodes, others or {}
        self._questions = random.Random(seed).sample(range(questions), questions)
        self._candidates: dict[str, tuple[str, Candidate]] = {}
        self._ladder = Ladder(decodes.measure, decodes.table, CONTROL, self._questions, max_loss=max_loss)
        self._exact: str | None = None

    def run(self) -> Tuned:
        """Search, and time the chosen presets."""
        self._add(self._decoder, [control_candidate(self._decoder)])
        is_complete = self._climb_all()
        others = self._other_bundles() if is_complete else {}
        return Tuned(self._rows(), tuple(self._presets(is_complete=is_complete)), others, is_complete)

    def _climb_all(self) -> bool:
        """Search in all lists of candidates. Return False if time ran out."""
        exact = exact_candidates(self._decoder)
        names = self._add(self._decoder, exact)
        pilot = self._questions[:PILOT_QUESTIONS]
        if not self._ladder.climb(self._add(self._decoder, self._first)):
            return False
        if self._ladder.balanced is not None:
            chosen = self._candidates[self._ladder.balanced][1]
            if not self._ladder.climb(self._add(self._decoder, neighbors(self._decoder, chosen))):
                return False
        if names and self._decodes.measure([CONTROL, *names], pilot):
            self._exact = max(names, key=self._ladder.speed)
            return self._decodes.measure([self._exact], self._questions)
        return True

    def _other_bundles(self) -> dict[str, PresetRow]:
        """Compare the balanced options on the other bundles with the control, and return the bundles that pass."""
        chosen = self._candidates[self._ladder.balanced or CONTROL][1]
        found = {}
        for bundle, decoder in self._others.items():
            name = f"{bundle}: {chosen.name}"
            self._add(decoder, [replace(chosen, name=name)], bundle)
            ladder = Ladder(self._decodes.measure, self._decodes.table, CONTROL, self._questions, max_loss=0.0)
            ladder.climb([name])
            self._ladder.rungs += ladder.rungs
            if ladder.balanced is not None:
                found[bundle] = self._preset_row(BALANCED, name)
        return found

    def _add(self, decoder: Decoder, candidates: Sequence[Candidate], bundle: str = "") -> list[str]:
        bundle = bundle or decoder.bundle.path.resolve().name
        for each in candidates:
            self._candidates[each.name] = bundle, each
            self._decodes.add(each.name, decoder, each.config(decoder))
        return [each.name for each in candidates]

    def _presets(self, *, is_complete: bool) -> list[PresetRow]:
        """Return the presets. The defaults are balanced if a complete search found nothing faster."""
        balanced = self._ladder.balanced
        if balanced is None and is_complete:
            balanced = CONTROL
        chosen = {FAST: self._ladder.fast or balanced, BALANCED: balanced, EXACT: self._exact}
        if balanced is None:
            return []
        return [self._preset_row(preset, name) for preset, name in chosen.items() if name is not None]

    def _preset_row(self, preset: str, name: str) -> PresetRow:
        """Time a configuration once more in turns with the control, since the first timings lie far apart."""
        table = self._decodes.table
        both = [each for each in self._questions if each in table[name] and each in table[CONTROL]][:_TIMED_QUESTIONS]
        timed = self._decodes.time_again(list(dict.fromkeys([CONTROL, name])), both)
        rate, control = _rate(timed[name]), _rate(timed[CONTROL])
        return PresetRow(
            preset=preset,
            config=name,
            options=dict(self._candidates[name][1].options),
            tokens_per_second=rate,
            speed=rate / control,
            speed_interval=_ratio_interval(timed[name], timed[CONTROL]),
            questions=len(both),
            measured=f"{self._score_text(name)}, {rate:.0f} tokens/s ({rate / control:.2f} times the defaults)",
        )

    def _score_text(self, name: str) -> str:
        difference = self._ladder.difference(name)
        own = _score(self._decodes.table[name])
        return (
            f"score {own:.1%} on {difference.questions} questions, {100 * difference.mean:+.1f} points "
            f"(at 90 % confidence at least {100 * difference.low:+.1f})"
        )

    def _rows(self) -> tuple[TuningRow, ...]:
        """Return the rows of all configurations with measurements, the fastest first."""
        table = self._decodes.table
        verdicts: dict[str, Verdict] = {rung.name: rung.verdict for rung in self._ladder.rungs}
        shown = [name for name in table if table[name].keys() & table[CONTROL].keys()]
        names = sorted(shown, key=self._ladder.speed, reverse=True)
        whole = [name for name in names if len(table[name]) == len(self._questions)]
        points = [(self._ladder.speed(name), _score(table[name])) for name in whole]
        front = {whole[each] for each in pareto_front(points)}
        return tuple(self._row(name, verdicts.get(name), name in front) for name in names)

    def _row(self, name: str, verdict: Verdict | None, on_front: bool) -> TuningRow:
        measured = list(self._decodes.table[name].values())
        scores = [each.score or 0.0 for each in measured]
        bundle, candidate = self._candidates[name]
        return TuningRow(
            config=name,
            bundle=bundle,
            options={} if candidate.options == self._candidates[CONTROL][1].options else dict(candidate.options),
            questions=len(measured),
            score=statistics.fmean(scores),
            score_interval=interval_from_resamples(
                statistics.fmean(scores), resampled_ratios(scores, [1.0] * len(scores))
            ),
            difference=None if name == CONTROL else self._ladder.difference(name),
            tokens_per_second=_rate(measured),
            speed=self._ladder.speed(name),
            seconds_per_question=sum(each.seconds for each in measured) / len(measured),
            verdict=verdict,
            on_front=on_front,
        )


def control_options(decoder: Decoder) -> dict[str, Any]:
    """Return the options of the control."""
    return control_candidate(decoder).config(decoder).requested()


def _score(measured: Mapping[int, DecodeOutcome]) -> float:
    return statistics.fmean(each.score or 0.0 for each in measured.values())


def _rate(measured: Sequence[DecodeOutcome]) -> float:
    return sum(each.tokens for each in measured) / sum(each.seconds for each in measured)


def _ratio_interval(own: Sequence[DecodeOutcome], control: Sequence[DecodeOutcome]) -> Interval | None:
    """Return the 95 % interval of the ratio of two speeds over similar questions."""
    if len(own) < 2:
        return None
    speeds = [
        resampled_ratios([each.tokens for each in side], [each.seconds for each in side]) for side in (own, control)
    ]
    return interval_from_resamples(_rate(own) / _rate(control), speeds[0] / speeds[1])
