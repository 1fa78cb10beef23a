"""lopa-export tune: finds the fastest decoding options that keep the score, and saves them as presets."""

from contextlib import ExitStack
from pathlib import Path

import click

from lopa.bench.comparison.candidates import Candidate, exact_candidates
from lopa.bench.comparison.decodes import Decodes
from lopa.bench.comparison.ladder import MIN_QUESTIONS, PILOT_QUESTIONS
from lopa.bench.comparison.outcomes import KeptOutcomes
from lopa.bench.comparison.score_plot import check_matplotlib, panel_of_tuning
from lopa.bench.comparison.tuning_report import PresetRow, TuningReport, tables_from_tuning
from lopa.bench.comparison.tuning_run import (
    BALANCED,
    Tuned,
    TuningRun,
    control_options,
    reference_prompts,
    scored_questions,
)
from lopa.bench.eval_set import EvalItem
from lopa.bench.progress import show_progress
from lopa.bench.report import Machine, prompt_file, run_now
from lopa.cli.measure.compared_strategies import check_masks, requested_variants, strategies_options, supported_variants
from lopa.cli.measure.report_output import ReportOutput, command_line, note, plot_option, report_option, resume_option
from lopa.cli.options.devices import device_options
from lopa.cli.program.grouped_command import GroupedCommand, PositiveNumber, option
from lopa.cli.program.lazy_group import FOLDER
from lopa.cli.program.verbosity import quiet
from lopa.cli.terminal.opening import defaults_text
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import edit_bundle, write_manifest
from lopa.runtime.bundle.manifest import MANIFEST_NAME, Preset
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import checked_defaults
from lopa.runtime.hub.hub_bundle import check_own_bundle

_NAME = "tune"
_EXPECTED_RUNGS = 4
"""Configurations that answer all questions in a usual run, for the estimate of the remaining time."""


@click.command(
    name="tune",
    cls=GroupedCommand,
    examples=(
        "lopa-export tune BUNDLE --eval EVAL.jsonl --save",
        "lopa-export tune BUNDLE --eval EVAL.jsonl --budget 30 -o REPORT --plot tuning.png",
        "lopa-export tune BUNDLE --reference-text PROMPTS.jsonl -o REFERENCE",
    ),
)
@click.argument("bundle", type=FOLDER)
@option(
    "--eval",
    "evaluation",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Questions with answers, as JSON lines (docs/how-to/measure.md).",
)
@option(
    "--reference-text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Prompts without answers, as JSON lines. The score is then the agreement with the model's own answer at one "
    "token per step.",
)
@option("--save", is_flag=True, help="Put the presets into BUNDLE, which then decodes with balanced by default.")
@option("--limit", type=click.IntRange(min=MIN_QUESTIONS), show_default="all", help="Maximum number of questions.")
@option(
    "--budget",
    type=PositiveNumber(),
    metavar="MINUTES",
    show_default="none",
    help="Stop after this time, and keep what was found until then.",
)
@option(
    "--max-loss",
    type=click.FloatRange(min=0, max=100),
    default=3.0,
    metavar="POINTS",
    help="Points of score that the preset fast may lose, with 90 % confidence.",
)
@option(
    "--precisions",
    type=FOLDER,
    metavar="DIR",
    help="Folder with bundles of the same checkpoint in other precisions, to compare with the chosen options.",
)
@option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the order of the questions.")
@strategies_options(show_default="a list of about 50 configurations")
@report_option
@resume_option("Reuse the decodes in --output.")
@plot_option("File for a plot of score against speed: .png, .svg or .pdf.")
@device_options
def command(
    bundle: Path,
    evaluation: Path | None,
    reference_text: Path | None,
    save: bool,
    limit: int | None,
    budget: float | None,
    max_loss: float,
    precisions: Path | None,
    seed: int,
    strategies: str | None,
    sweep: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    resume: bool,
    plot: Path | None,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
) -> None:
    """Find the fastest decoding options of BUNDLE on this device whose score is not lower than with its defaults.

    Each configuration answers 8 questions. Then the fastest ones answer all questions, until one is not lower than the
    defaults: it is the preset balanced. The preset fast may lose --max-loss points. The preset exact has the tokens
    of one token per step. One request is decoded at a time.
    """
    path, items = _questions(evaluation, reference_text, limit)
    if sweep and strategies is None:
        raise click.UsageError("--sweep needs --strategies, the strategies whose option it is")
    requested = () if strategies is None else requested_variants(strategies, sweep)
    if plot is not None:
        check_matplotlib()
    check_masks(bundle, "a search for decoding options")
    if save:
        check_own_bundle(bundle)
    files = ReportOutput(output, plot, replaces=overwrite, resumes=resume)
    with ExitStack() as opened:
        decoder = opened.enter_context(Decoder.open(bundle, devices, threads=threads, device_timeout=device_timeout))
        others = {
            each.name: opened.enter_context(Decoder.open(each, devices, threads=threads, device_timeout=device_timeout))
            for each in _other_precisions(decoder.bundle, precisions)
        }
        exact = exact_candidates(decoder)
        if reference_text is not None and not exact:
            raise BadInputError(
                f"--reference-text, but {bundle} cannot decode one token per step",
                expected="a model with fixed blocks",
                remedy="give questions with answers: --eval FILE",
            )
        fitting = supported_variants(decoder, strategies or "", requested)
        named = [Candidate(each.name, each.requested) for each in fitting]
        for each in named:
            each.config(decoder)
            if save:
                checked_defaults(each.options)
        files.check(_NAME)
        run = run_now(decoder.bundle, device=decoder.session.device, threads=threads, arguments=command_line())
        file = prompt_file(path, limit)
        _warn_if_busy(run.machine)
        kept = None if output is None else KeptOutcomes(output, _NAME, run, file)
        if kept is not None:
            opened.enter_context(kept.writing(resume=resume, note=note))
        with show_progress("decodes", _EXPECTED_RUNGS * len(items), quiet=quiet()) as progress:

            def show(done: int) -> None:
                expected = PILOT_QUESTIONS * len(decodes.sides) + _EXPECTED_RUNGS * len(items)
                progress(done, max(done + 1, expected))

            decodes = Decodes(
                items,
                reference=None if reference_text is None else exact[0].name,
                kept=kept,
                seconds=None if budget is None else 60 * budget,
                on_decode=show,
            )
            tuning = TuningRun(
                decoder, decodes, questions=len(items), seed=seed, max_loss=max_loss / 100, others=others, named=named
            )
            tuned = tuning.run()
            progress(decodes.count, decodes.count)
        report = TuningReport(
            benchmark=_NAME,
            run=run,
            prompts=file,
            scoring="correct answers" if reference_text is None else "agreement with one token per step",
            control=control_options(decoder),
            max_loss=max_loss / 100,
            is_complete=tuned.is_complete,
            decodes=decodes.count,
            seconds=decodes.seconds,
            rows=tuned.rows,
            presets=tuned.presets,
        )
        other_bundles = {name: each.bundle for name, each in others.items()}
    files.write(_NAME, report, tables_from_tuning(report), lambda: [panel_of_tuning(report)])
    _print_result(tuned, resumable=output is not None)
    if save:
        _save(decoder.bundle, tuned.presets, devices)
        for name, row in tuned.others.items():
            _save(other_bundles[name], [row], devices)


def _questions(evaluation: Path | None, reference: Path | None, limit: int | None) -> tuple[Path, tuple[EvalItem, ...]]:
    if evaluation is not None and reference is None:
        return evaluation, scored_questions(evaluation, limit=limit)
    if reference is not None and evaluation is None:
        return reference, reference_prompts(reference, limit=limit)
    raise click.UsageError("give either --eval FILE or --reference-text FILE")


def _other_precisions(bundle: Bundle, folder: Path | None) -> list[Path]:
    """Return the bundles in `folder` that were made from the same files as `bundle`, without `bundle` itself."""
    if folder is None:
        return []
    found = []
    for path in sorted(each.parent for each in folder.glob(f"*/{MANIFEST_NAME}")):
        origin, own = Bundle.open(path).manifest.origin, bundle.manifest.origin
        if path.resolve() != bundle.path.resolve() and (origin.checkpoint, origin.adapter) == (
            own.checkpoint,
            own.adapter,
        ):
            found.append(path)
    if not found:
        raise BadInputError(
            f"--precisions {folder} without another bundle of the same checkpoint",
            expected="a folder of bundles",
            remedy="export the checkpoint into this folder with --quantize int8 or fp8, or omit --precisions",
        )
    return found


def _warn_if_busy(machine: Machine) -> None:
    if machine.load is not None and machine.load > machine.cores / 2:
        click.echo(
            f"warning: the machine is busy (load {machine.load} on {machine.cores} cores): speeds are unreliable",
            err=True,
        )


def _print_result(tuned: Tuned, *, resumable: bool) -> None:
    for row in tuned.presets:
        click.echo(f"{row.preset}: {row.config}: {row.measured}", err=True)
    for name, row in tuned.others.items():
        click.echo(f"bundle {name} with {BALANCED}: {row.measured}", err=True)
    if not tuned.is_complete:
        more = "--resume --budget MINUTES continues" if resumable else "give more time, or -o DIR to continue later"
        what = "all candidates were compared" if tuned.rows else "anything was measured"
        click.echo(f"the time is over before {what}: {more}", err=True)


def _save(bundle: Bundle, rows: tuple[PresetRow, ...] | list[PresetRow], devices: tuple[str, ...]) -> None:
    if not rows:
        click.echo(f"{bundle.path}: nothing to save, the defaults stay", err=True)
        return
    presets = {
        row.preset: Preset(options=checked_defaults(row.options), devices=list(devices), measured=row.measured)
        for row in rows
    }
    write_manifest(edit_bundle(bundle, defaults={"preset": BALANCED}, presets=presets))
    text = defaults_text(presets[BALANCED].options)
    click.echo(f"{bundle.path}: presets {', '.join(presets)}; requests now decode with {BALANCED}: {text}")
