"""lopa-export questions: evaluation sets for bench --quality, generated or made of published data."""

import json
from collections.abc import Mapping
from pathlib import Path

import click

from lopa.bench.evaluation.published import DATA_SETS, lines_of_data_set, records_from_jsonl
from lopa.bench.evaluation.waiting_lines import MAX_LENGTH, MIN_LENGTH, TASKS, lines_of_task
from lopa.bench.report import check_output
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_whole

_COUNT, _LENGTH = 100, 4
_OF_LINES = ("--count", "--length", "--seed")
_OF_DATA = ("--shots", "--shots-from", "--chat", "--last-number")


@click.command(name="questions")
@click.argument("name", type=click.Choice([*TASKS, *DATA_SETS]), metavar="NAME")
@click.argument("data", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Their place.")
@click.option("--count", type=int, help=f"How many questions about a line [default: {_COUNT}].")
@click.option("--length", type=int, help=f"People in the line, {MIN_LENGTH} to {MAX_LENGTH} [default: {_LENGTH}].")
@click.option("--seed", type=int, help="Decides names and places [default: 0].")
@click.option(
    "--shots",
    type=click.IntRange(min=0),
    help="Examples in front of every question, the first of --shots-from [default: as published, where that is given].",
)
@click.option(
    "--shots-from", type=click.Path(path_type=Path), metavar="FILE", help="Records of the same data set, as examples."
)
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="Of an answer [default: 64 of a line, else 512].")
@click.option("--chat", is_flag=True, help="Ask as a chat, by the bundle's template.")
@click.option("--last-number", is_flag=True, help="gsm8k: score the last number of an answer, wherever it stands.")
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
    """Write the evaluation set NAME for `bench --quality`.

    Generated, about a waiting line: copy, reverse, sort, shuffle, replace_index, replace_random, insert_index,
    insert_random, remove_index, remove_random. Made of DATA, the data set's own file: gsm8k, humaneval, mbpp.
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
                    expected=f"{wanted} at least, one for each example",
                    remedy="give another file, or fewer --shots",
                )
        lines = lines_of_data_set(name, records, examples, chat=chat, last_number=last_number)
    if max_new_tokens is not None:
        lines = [line | {"max_new_tokens": max_new_tokens} for line in lines]
    check_output(output)
    write_whole(output, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


def _check_usage(name: str, data: Path | None, given: Mapping[str, object]) -> None:
    is_data = name in DATA_SETS
    if is_data and data is None:
        raise click.UsageError(f"{name} needs DATA, the data set's own file of JSON lines: it is not in this project")
    if not is_data and data is not None:
        raise click.UsageError(f"{name} is generated: leave DATA out")
    for option in _OF_LINES if is_data else _OF_DATA:
        if given[option] is not None:
            raise click.UsageError(f"{option} does not go with {name}")
    if given["--shots"] and given["--shots-from"] is None:
        raise click.UsageError("--shots needs --shots-from, the file of the examples")
    if given["--last-number"] and name != "gsm8k":
        raise click.UsageError(f"--last-number does not go with {name}")
    if given["--chat"] and given["--shots-from"] and DATA_SETS[name].chat is not None:
        raise click.UsageError(f"{name} as a chat has no examples: leave --shots-from out")
