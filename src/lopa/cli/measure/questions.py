"""lopa-export bench questions: writes evaluation sets from published data, for bench quality."""

import json
from pathlib import Path

import click

from lopa.bench.data_sets import DATA_SETS, lines_of_data_set, records_of_data_set
from lopa.bench.report import check_output
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_atomically


@click.command(
    name="questions",
    cls=GroupedCommand,
    examples=("lopa-export bench questions gsm8k GSM8K.jsonl --shots 1 --shots-from GSM8K.jsonl -o QUESTIONS.jsonl",),
)
@click.argument("name", type=click.Choice(list(DATA_SETS)), metavar="NAME")
@click.argument("data", type=click.Path(path_type=Path))
@option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File for the evaluation set.",
)
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
@option("--max-new-tokens", type=click.IntRange(min=1), default=512, help="Maximum number of tokens of an answer.")
@option("--chat", is_flag=True, help="Write the questions as chats, for the bundle's chat template.")
@option("--last-number", is_flag=True, help="For gsm8k, score the last number of an answer, not the one after ####.")
def command(
    name: str,
    data: Path,
    output: Path,
    shots: int | None,
    shots_from: Path | None,
    max_new_tokens: int,
    chat: bool,
    last_number: bool,
) -> None:
    """Write the evaluation set NAME (gsm8k, humaneval or mbpp) for bench quality.

    DATA is the data set's own file of JSON lines, which is not part of this project.
    """
    if shots and shots_from is None:
        raise click.UsageError("--shots needs --shots-from, the file of the examples")
    if last_number and name != "gsm8k":
        raise click.UsageError(f"--last-number is not an option of {name}: omit it")
    if chat and shots_from is not None and DATA_SETS[name].chat is not None:
        raise click.UsageError(f"{name} as a chat has no examples: omit --shots-from")
    records, examples = records_of_data_set(name, data), []
    if shots_from is not None:
        wanted = DATA_SETS[name].shots if shots is None else shots
        examples = records_of_data_set(name, shots_from)[:wanted]
        if len(examples) < wanted:
            raise BadInputError(
                f"{shots_from} has {len(examples)} records",
                expected=f"at least {wanted}, one for each example",
                remedy="give another file, or fewer --shots",
            )
    lines = lines_of_data_set(
        name, records, examples, chat=chat, last_number=last_number, max_new_tokens=max_new_tokens
    )
    check_output(output)
    write_atomically(output, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
