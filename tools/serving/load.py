"""A server over HTTP under load, beside the same requests through an engine in process.

Usage: python -m tools.serving.load BUNDLE [-o FOLDER] [--clients 1,2,...] [--requests N] [--rounds N]
    [--branches N] [--tokens N] [--slots N]

The server is a process of its own, and so is this one, its client. So many clients ask one request after another, on
connections that they keep, for answers at once, streamed, and streamed with drafts, until all prompts of a run are
answered; then an engine in this process is asked for the same, with the server idle. All loads take turns in every
round. Greedy, one thread. Prints tables; with -o writes load.json and load.md too.

Time outside the engine is seen in three ways: how much longer the same tokens take over HTTP, what share of the time no
round runs, and how much more processor time the process takes that decodes. Latencies begin before a request is sent.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.report import make_folder, prompt_file, run_now, write_report
from lopa.bench.table import show_table
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.tiny import EVAL
from tools.serving.load_report import LoadReport, Measured, Pair, tables_of_report
from tools.serving.runs import Form, Load, run_in_process, run_over_http
from tools.serving.server import ServerProcess, served
from tools.shown_errors import errors_shown

_CLIENTS = "1,2,4,8,16,32"


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for load.json and load.md.")
@click.option("--clients", default=_CLIENTS, show_default=True, help="At once; several numbers, each a load.")
@click.option("--requests", type=click.IntRange(min=1), default=64, show_default=True, help="Of each run of a load.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--branches", default=1, show_default=True)
@click.option("--tokens", default=64, show_default=True, help="Most of an answer.")
@click.option("--slots", default=8, show_default=True)
def main(
    bundle: Path, output: Path | None, clients: str, requests: int, rounds: int, branches: int, tokens: int, slots: int
) -> None:
    """Measure, and show what was found."""
    with errors_shown():
        numbers = _numbers(clients)
        if output is not None:
            make_folder(output)
        items = eval_set_from_jsonl(EVAL)
        prompts = [items[number % len(items)].prompt for number in range(requests)]
        with Decoder.open(bundle, threads=1) as decoder:
            run = run_now(decoder.bundle, device="cpu", threads=1, arguments=["tools.serving.load", *sys.argv[1:]])
            config = decoder.config(branches=branches, max_new_tokens=tokens)
            forms: tuple[Form, ...] = get_args(Form)
            loads = [Load(prompts, config, form, number, slots) for number in numbers for form in forms]
            with served(bundle, ("--slots", slots, "--queue", max(numbers))) as server:
                pairs = asyncio.run(_pairs(decoder, server, loads, rounds))
        measured = tuple(Measured(load.form, load.clients, tuple(own)) for load, own in zip(loads, pairs, strict=True))
        report = LoadReport(run, prompt_file(EVAL, None), requests, slots, branches, tokens, measured)
        tables = tables_of_report(report)
        if output is not None:
            write_report(output, "load", report, tables)
    for table in tables:
        show_table(table)


async def _pairs(decoder: Decoder, server: ServerProcess, loads: Sequence[Load], rounds: int) -> list[list[Pair]]:
    """Of every load its pairs, one a round; HTTP comes first in one round, the engine in the next."""
    pairs: list[list[Pair]] = [[] for _ in loads]
    for number in range(rounds + 1):
        for load, own in zip(loads, pairs, strict=True):
            if number % 2:
                http = await run_over_http(server, load)
                engine = await run_in_process(decoder, load)
            else:
                engine = await run_in_process(decoder, load)
                http = await run_over_http(server, load)
            if number:  # the first round finds memory and caches cold
                own.append(Pair(http, engine))
    return pairs


def _numbers(text: str) -> list[int]:
    numbers = [int(word) for word in text.split(",") if word.isdigit() and int(word) > 0]
    if not numbers or len(numbers) != len(text.split(",")):
        raise BadInputError(
            f"--clients {text[:80]}", expected="whole numbers from 1, with commas", remedy="e.g. 1,8,32"
        )
    return numbers


if __name__ == "__main__":
    main()
