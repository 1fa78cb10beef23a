"""A small quality benchmark on the real bundle. Its numbers equal single decodes' and the recorded traces' numbers."""

import gzip
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.chat_bundles import with_chat_template
from tests.runtime.decoding.test_branch_budget import costs_with
from tests.runtime.strategy.agreement import strategy_of_example

from lopa.bench.comparison.outcomes import DecodeOutcome, outcome_from_result
from lopa.bench.comparison.quality_figures import (
    QualityOutcomes,
    Row,
    comparison_with_nearest,
    rows_from_outcomes,
)
from lopa.bench.comparison.quality_run import (
    decode_outcomes,
    variant_config,
    variants_that_fit,
)
from lopa.bench.comparison.variants import AUTO_VARIANT, SWEEPS, VARIANTS, Variant, variants_from_text
from lopa.bench.eval_set import EvalItem, is_correct
from lopa.cli.options.decoding_options import sweeps_from_texts
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import costs_name
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.strategy import installed, register_strategy

TRACES = Path(__file__).resolve().parents[2] / "reference" / "traces"
PROMPTS = 4


def read_traces(name: str) -> list[dict[str, Any]]:
    """Return the recorded decodes of the first prompts. The files of lopa have only prompts of kind code."""
    with gzip.open(TRACES / f"{name}.jsonl.gz", "rt") as lines:
        return [each for each in map(json.loads, lines) if each["type"] == "trace" and each["i"] < PROMPTS]


@pytest.fixture(scope="module")
def items() -> list[EvalItem]:
    return [EvalItem(each["prompt"], each["answer"], each["kind"]) for each in read_traces("x_lopa_bf1_bs32_full")]


@pytest.fixture(scope="module")
def decoder(tiny_bundle: Path) -> Decoder:
    return Decoder.open(tiny_bundle, threads=1)


def measured_rows(decoder: Decoder, items: list[EvalItem], variants: tuple[Variant, ...]) -> tuple[Row, ...]:
    return rows_from_outcomes(items, decode_outcomes(decoder, items, variants))


@pytest.fixture(scope="module")
def outcomes(decoder: Decoder, items: list[EvalItem]) -> QualityOutcomes:
    encoded: list[int] = []
    found = decode_outcomes(decoder, items, VARIANTS, progress=encoded.append)
    assert encoded == list(range(1, PROMPTS * len(VARIANTS) + 1))
    return found


@pytest.fixture(scope="module")
def rows(items: list[EvalItem], outcomes: QualityOutcomes) -> tuple[Row, ...]:
    return rows_from_outcomes(items, outcomes)


def test_a_row_for_every_configuration_and_kind(rows: tuple[Row, ...], items: list[EvalItem]) -> None:
    assert {item.kind for item in items} == {"math", "code"}
    names = ["vanilla", "threshold", "d2f", "lopa-2", "lopa-3", "lopa-4", "lopa-6", "lopa-8"]
    assert [(row.kind, row.config) for row in rows] == [(kind, name) for kind in ("math", "code") for name in names]
    for row in rows:
        assert (row.measure.score is not None) == (row.kind == "math")
        assert row.measure.prompts == sum(item.kind == row.kind for item in items)


@pytest.mark.parametrize("text", ["d2f,", "no", "ALL", ""])
def test_unknown_names_are_rejected(text: str) -> None:
    with pytest.raises(BadInputError, match=r"unknown curve"):
        variants_from_text(text)


@pytest.fixture
def agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_registered", {})
    register_strategy(strategy_of_example("agreement"))


@pytest.mark.usefixtures("agreement")
def test_own_strategies_are_swept_over_a_grid(decoder: Decoder, items: list[EvalItem]) -> None:
    """An option applies to the strategies that read it. The points of a curve differ in the last one."""
    assert [each.name for each in variants_from_text("agreement,d2f")[:2]] == ["agreement", "d2f 0.95"]
    with pytest.raises(BadInputError, match=r"among .*, agreement.*\n.*did you mean agreement\?"):
        variants_from_text("agrement")
    grid = variants_from_text("agreement,top_n,speculative-d2f", {"branches": (3,), "agreement": (2, 3)})
    assert [(each.name, each.curve) for each in grid[:2]] == [
        (f"agreement branches=3 agreement={votes}", "agreement") for votes in (2, 3)
    ]
    assert variants_from_text("agreement", {"agreement": (2, 3), "branches": (3,)}) == grid[:2], "in any order"
    assert [each.name for each in grid[2:]] == [
        "top_n 1",
        "top_n 2",
        "top_n 3",
        "top_n 4",
        "speculative-d2f branches=3",
    ]
    rows = measured_rows(decoder, items[:1], grid[:2])
    for variant, row in zip(grid, rows, strict=False):
        assert variant_config(decoder, variant).strategy_options == {"agreement": row.options["agreement"]}
    with pytest.raises(BadInputError, match="--sweep gamma with --strategies agreement,d2f, which do not read it"):
        variants_from_text("agreement,d2f", {"gamma": (0.1,)})


def test_close_values_are_configurations_of_their_own(decoder: Decoder, items: list[EvalItem]) -> None:
    variants = variants_from_text("d2f", {"skip_threshold": (0.9999996, 1.0)})
    assert [each.name for each in variants] == ["d2f skip_threshold=0.9999996", "d2f skip_threshold=1"]
    done: list[int] = []
    decode_outcomes(decoder, items[:1], variants, progress=done.append)
    assert done == [1, 2]


@pytest.mark.parametrize("curve", ["lopa", "lopa-first-masked", "speculative-d2f"])
def test_a_sweep_of_another_option_keeps_branches(decoder: Decoder, curve: str) -> None:
    """One branch, the default on a CPU, would measure D2F."""
    for variant in variants_from_text(curve, {"skip_threshold": (0.7, 0.8)}):
        assert variant_config(decoder, variant).branches == 4
        assert variant.name.startswith(f"{curve} branches=4 skip_threshold=")
        assert variant.curve == curve
    (own,) = variants_from_text(curve, {"skip_threshold": (0.7,), "branches": (2,)})
    assert variant_config(decoder, own).branches == 2


@pytest.mark.usefixtures("agreement")
def test_values_to_sweep_are_read_like_options() -> None:
    texts = ["agreement=2,3,2", "--skip-threshold=0.9,.8", "branches=2,auto", "seed=1,2"]
    expected = {"seed": (1, 2), "agreement": (2, 3), "skip_threshold": (0.9, 0.8), "branches": (2, "auto")}
    assert sweeps_from_texts(texts, ["agreement"]) == expected
    for text, strategies, message in (
        ("threshold=0.7,0.8", ["d2f"], r"did you mean skip_threshold=0.7,0.8\?"),
        ("agrement=2", ["agreement"], r"did you mean agreement=2\?"),
        ("skip_threshold=0.7,x", ["d2f"], "'x' is not a valid float"),
        ("strategy=d2f", ["d2f"], "name strategies in --strategies"),
        ("stop=x", ["d2f"], "edit BUNDLE --default stop=VALUE"),
        ("stop_token_ids=5", ["d2f"], "stop_token_ids can only be set by a request"),
    ):
        with pytest.raises(BadInputError, match=message):
            sweeps_from_texts([text], strategies)


def test_auto_needs_a_cost_table(tiny_bundle: Path, tmp_path: Path, items: list[EvalItem]) -> None:
    copy = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    digest = Bundle.open(copy).manifest.weights_digest
    (copy / costs_name("cpu")).write_bytes(json_from_record(costs_with(digest, first=0.0, each=1.0)))
    with Decoder.open(copy, threads=1) as decoder:
        variants = variants_that_fit(decoder, (*VARIANTS, AUTO_VARIANT))
        rows = {row.config: row for row in measured_rows(decoder, items[:1], variants)}
    assert set(rows) == {*(variant.name for variant in VARIANTS), "lopa-auto"}
    # With a table in which further branches only add cost, auto decodes like d2f or saves its last round.
    assert rows["d2f"].measure.steps - 1 <= rows["lopa-auto"].measure.steps <= rows["d2f"].measure.steps


def test_scores_of_the_prompts(decoder: Decoder, items: list[EvalItem]) -> None:
    answer = decoder.generate(items[0].prompt, decoder.config(strategy="vanilla", max_new_tokens=8)).text
    item = replace(items[0], kind="x", scoring="text", answer=answer, max_new_tokens=8)
    slow, fast = Variant("slow", "vanilla"), Variant("fast", "top_n", options=(("tokens_per_step", 8),))
    found = {row.config: row.measure for row in measured_rows(decoder, [item], (slow, fast))}
    assert found["slow"].steps > found["fast"].steps == 1
    score = found["slow"].score
    assert score is not None
    assert score.correct == 1


def test_prompts_have_their_own_stops_and_chats(
    tiny_bundle: Path, tmp_path: Path, items: list[EvalItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = with_chat_template(tiny_bundle, tmp_path / "chat", "{{ bos_token }}{{ messages[0].content }}")
    plain = replace(items[0], kind="plain", stop=(".",))
    chat = replace(plain, prompt="", messages=({"role": "user", "content": items[0].prompt},), kind="chat")
    begun = replace(chat, begun=" The", kind="chat")
    encoded: list[str] = []

    def recording_outcome(item: EvalItem, result: GenerationResult) -> DecodeOutcome:
        encoded.append(result.text)
        return outcome_from_result(item, result)

    monkeypatch.setattr("lopa.bench.comparison.decodes.outcome_from_result", recording_outcome)
    with Decoder.open(copy, threads=1) as decoder:
        variant = Variant("d2f", "d2f", options=(("skip_threshold", 0.9),))
        measured_rows(decoder, [plain, chat, begun], (variant,))
        (result,) = decoder.generate([items[0].prompt + " The"], variant_config(decoder, variant))
    assert "." not in encoded[0]
    assert encoded[0] == encoded[1]
    assert encoded[2] == result.text.partition(".")[0]


def test_prompts_that_do_not_fit_are_rejected_first(decoder: Decoder, items: list[EvalItem]) -> None:
    encoded: list[int] = []
    with pytest.raises(BadInputError, match="max_new_tokens is 4000"):
        decode_outcomes(decoder, [items[0], replace(items[1], max_new_tokens=4000)], VARIANTS, encoded.append)
    assert not encoded


def test_every_prompt_is_encoded_once(decoder: Decoder, items: list[EvalItem], monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every configuration's measured time would include encoding for prompts but not for chats."""
    encode, encoded = decoder.tokenizer.encode, []

    def recording_encode(text: str, **options: Any) -> Any:
        encoded.append(text)
        return encode(text, **options)

    monkeypatch.setattr(decoder.tokenizer, "encode", recording_encode)
    short = [replace(item, max_new_tokens=4) for item in items]
    decode_outcomes(decoder, short, variants_from_text("top_n"))
    assert encoded == [item.prompt for item in items]


def test_unsupported_configurations_are_omitted(tiny_bundle: Path) -> None:
    """Sliding blocks forbid exact speculative decoding, and `auto` needs a cost table."""
    every = variants_from_text("all")
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        fitting = variants_that_fit(decoder, every)
        assert set(every) - set(fitting) == set(variants_from_text("lopa-auto"))
        sliding = msgspec.structs.replace(decoder.bundle.manifest.decoding, alignment="sliding", attention="causal")
        manifest = msgspec.structs.replace(decoder.bundle.manifest, decoding=sliding)
        bundle = replace(decoder.bundle, manifest=manifest)
        slides = Decoder(bundle, decoder.session, decoder.tokenizer)
        names = {variant.curve_name for variant in variants_that_fit(slides, every)}
        assert not any(name.startswith("speculative") for name in names)
        assert {"threshold", "vanilla"} <= names


def scored_outcomes(verdicts: str, tokens: int) -> list[DecodeOutcome]:
    """Return outcomes of one step each: R right, W wrong, - not scored."""
    scores = {"R": 1.0, "W": 0.0, "-": None}
    return [DecodeOutcome(scores[each], 1, tokens, generated_positions=32, seconds=1.0) for each in verdicts]


def test_pairs_are_counted_prompt_by_prompt() -> None:
    found = comparison_with_nearest(scored_outcomes("RRRRWWWW", 4), {"d2f 0.9": scored_outcomes("RWWWRWWW", 4)})
    assert found is not None
    assert (found.control, found.difference.won, found.difference.lost) == ("d2f 0.9", 3, 1)
    assert found.difference.p == pytest.approx(10 / 16)


def test_the_control_is_the_nearest_in_speed() -> None:
    controls = {"slow": scored_outcomes("R", 2), "like": scored_outcomes("W", 6), "fast": scored_outcomes("R", 9)}
    for tokens, name in ((1, "slow"), (3, "slow"), (5, "like"), (7, "like"), (8, "fast"), (20, "fast")):
        found = comparison_with_nearest(scored_outcomes("R", tokens), controls)
        assert found is not None
        assert found.control == name
    assert comparison_with_nearest(scored_outcomes("R", 0), controls) is not None, "nothing was generated"


def test_ratios_match_single_decodes(rows: tuple[Row, ...], decoder: Decoder, items: list[EvalItem]) -> None:
    for row in rows:
        chosen = [item for item in items if item.kind == row.kind]
        config = decoder.config(strategy=row.strategy, branches=row.branches, max_new_tokens=256)
        results = decoder.generate([item.prompt for item in chosen], config)
        found = row.measure
        assert found.steps == sum(result.steps for result in results)
        assert found.tokens == sum(len(result.token_ids) for result in results)
        assert found.generated_positions >= found.tokens
        assert found.tokens_per_forward == pytest.approx(found.tokens / found.steps)
        assert found.positions_per_forward == pytest.approx(found.generated_positions / found.steps)
        assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds)
        if found.score is not None:
            right = [is_correct(result.text, item.answer) for item, result in zip(chosen, results, strict=True)]
            assert found.score.correct == sum(right)


def test_all_configurations_differ(decoder: Decoder) -> None:
    for name in SWEEPS:
        configs = [variant_config(decoder, variant) for variant in variants_from_text(name)]
        assert len(configs) == max(1, len(SWEEPS[name].values))
        assert len({json.dumps(asdict(config), sort_keys=True) for config in configs}) == len(configs)
    assert len(variants_from_text("all")) == sum(len(variants_from_text(name)) for name in SWEEPS)


def test_sets_of_configurations() -> None:
    """The recommended configurations are a subset of all, so a run of all reuses their outcomes."""
    recommended = variants_from_text("recommended")
    assert len(recommended) == 8
    assert set(recommended) <= set(variants_from_text("all"))
    assert variants_from_text("published") == (*VARIANTS, AUTO_VARIANT)
    with pytest.raises(BadInputError, match="expected: published, recommended, all, or names among vanilla"):
        variants_from_text("recommended,d2f")


def test_no_comparison_without_a_control_or_a_score() -> None:
    assert comparison_with_nearest(scored_outcomes("RW", 4), {}) is None
    assert comparison_with_nearest(scored_outcomes("--", 4), {"d2f": scored_outcomes("--", 4)}) is None
