"""lopa-export bench questions: writes evaluation sets, generated or from published data, for bench quality."""

import json
from collections.abc import Mapping
from pathlib import Path

import click

from lopa.bench.evaluation.data_sets import DATA_SETS, lines_of_data_set, records_from_jsonl
from lopa.bench.evaluation.waiting_lines import MAX_LENGTH, MIN_LENGTH, TASKS, lines_of_task
from lopa.bench.report import check_output
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_atomically

_COUNT, _LENGTH = 100, 4
_GENERATED_ONLY = ("--count", "--length", "--seed")
_DATA_ONLY = ("--shots", "--shots-from", "--chat", "--last-number")


@click.command(
    name="questions",
    cls=GroupedCommand,
    examples=(
        "lopa-export bench questions shuffle --count 3 --length 6 -o QUESTIONS.jsonl",
        "lopa-export bench questions gsm8k GSM8K.jsonl --shots 1 --shots-from GSM8K.jsonl -o QUESTIONS.jsonl",
    ),
)
@click.argument("name", type=click.Choice([*TASKS, *DATA_SETS]), metavar="NAME")
@click.argument("data", type=click.Path(path_type=Path), required=False)
@option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File for the evaluation set.",
)
@option("--count", type=int, show_default=f"{_COUNT}", help="Number of generated questions.")
@option(
    "--length",
    type=int,
    show_default=f"{_LENGTH}",
    help=f"Number of people in the waiting line, {MIN_LENGTH} to {MAX_LENGTH}.",
)
@option("--seed", type=int, show_default="0", help="Seed of the names and positions.")
@option(
    "--shots",
    type=click.IntRange(min=0),
    show_default="with --shots-from as published, else 0",
    help="Number of examples before every question: the first records of --shots-from.",
)
@option(
    "--shots-from",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with records of the same data set, used as examples.",
)
@option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    show_default="64 for generated questions, else 512",
    help="Maximum number of tokens of an answer.",
)
@option("--chat", is_flag=True, help="Write the questions as chats, for the bundle's chat template.")
@option("--last-number", is_flag=True, help="For gsm8k, score the last number of an answer, not the one after ####.")
def command(
    name: str,
    data: Path | None,
    output: Path,
    count: int | None,
    length: int | None,
    seed: int | None,
    shots: int | None,
    shots_from: Path | None,
    max_new_tokens: int | None,
    chat: bool,
    last_number: bool,
) -> None:
    """Write the evaluation set NAME for bench quality.

    Questions about a waiting line are generated for the names copy, reverse, sort, shuffle, replace_index,
    replace_random, insert_index, insert_random, remove_index and remove_random. The names gsm8k, humaneval and mbpp
    need DATA, the data set's own file.
    """
    given = {
        **{"--count": count, "--length": length, "--seed": seed},
        **{"--shots": shots, "--shots-from": shots_from, "--chat": chat or None, "--last-number": last_number or None},
    }
    _check_usage(name, data, given)
    if data is None:
        lines = lines_of_task(
            name,
            count=_COUNT if count is None else count,
            length=_LENGTH if length is None else length,
            seed=seed or 0,
        )
    else:
        records, examples = records_from_jsonl(name, data), []
        if shots_from is not None:
            wanted = DATA_SETS[name].shots if shots is None else shots
            examples = records_from_jsonl(name, shots_from)[:wanted]
            if len(examples) < wanted:
                raise BadInputError(
                    f"{shots_from} has {len(examples)} records",
                    expected=f"at least {wanted}, one for each example",
                    remedy="give another file, or fewer --shots",
                )
        lines = lines_of_data_set(name, records, examples, chat=chat, last_number=last_number)
    if max_new_tokens is not None:
        lines = [line | {"max_new_tokens": max_new_tokens} for line in lines]
    check_output(output)
    write_atomically(output, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


def _check_usage(name: str, data: Path | None, given: Mapping[str, object]) -> None:
    is_data = name in DATA_SETS
    if is_data and data is None:
        raise click.UsageError(
            f"{name} needs DATA, the data set's own file of JSON lines, which is not part of this project"
        )
    if not is_data and data is not None:
        raise click.UsageError(f"{name} is generated: omit DATA")
    for name_of_option in _GENERATED_ONLY if is_data else _DATA_ONLY:
        if given[name_of_option] is not None:
            raise click.UsageError(f"{name_of_option} is not an option of {name}: omit it")
    if given["--shots"] and given["--shots-from"] is None:
        raise click.UsageError("--shots needs --shots-from, the file of the examples")
    if given["--last-number"] and name != "gsm8k":
        raise click.UsageError(f"--last-number is not an option of {name}: omit it")
    if given["--chat"] and given["--shots-from"] and DATA_SETS[name].chat is not None:
        raise click.UsageError(f"{name} as a chat has no examples: omit --shots-from")
