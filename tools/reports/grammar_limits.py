"""Effect of costly grammars on a server and on a decoding loop, as Markdown.

    python -m tools.reports.grammar_limits BUNDLE [--grammars 250] [--seed 0]

The table: two requests with a costly grammar at a time, while plain requests and /health are asked for again and again.
The line below: random hostile grammars that pass the helper process, and the processor time that they then take here.
"""

import argparse
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from lopa import Decoder, GrammarLimits, LopaError
from lopa.bench.machine import date_now, machine_now
from tools.fuzz.grammars import hostile_grammar
from tools.serving.server import MODEL, served

_PROMPT = "Question: 2 + 3?\nAnswer:"
_LETTERS = [{"type": "string", "pattern": f"^\\p{{L}}{{{200 + number}}}$"} for number in range(16)]
COSTLY: dict[str, dict[str, Any]] = {
    "allOf of 4 multiples": {"allOf": [{"type": "integer", "multipleOf": each} for each in (9973, 9967, 9949, 9941)]},
    "allOf of 2 multiples": {"allOf": [{"type": "integer", "multipleOf": each} for each in (997, 991)]},
    "allOf of 20 patterns": {"allOf": [{"type": "string", "pattern": f".*{chr(97 + each)}.*"} for each in range(20)]},
    "anyOf of 16 \\p{L}{200}": {"anyOf": _LETTERS},
    "const of 80 kB": {"const": {f"k{number}": list(range(100)) for number in range(200)}},
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--grammars", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    machine = machine_now()
    print(f"{date_now()}, {machine.cpu}, {machine.cores} cores, load {machine.load}, {machine.versions}\n")
    print(
        "| grammar, two at a time | status | seconds | a plain request, most | /health, most |\n|---|---|---|---|---|"
    )
    with served(asked.bundle, []) as server:
        url = f"http://{server.address.host}:{server.address.port}"
        for name, schema in COSTLY.items():
            print(_row_of_server(url, name, schema), flush=True)
    print()
    print(_line_of_steps(asked.bundle, range(asked.seed, asked.seed + asked.grammars)))


def _row_of_server(url: str, name: str, schema: dict[str, Any]) -> str:
    answers: list[tuple[int, float]] = []

    def ask(number: int) -> None:
        own = {"title": f"{number}", **schema}  # results of equal grammars are kept
        answers.append(_answer(f"{url}/v1/completions", {"lopa": {"json_schema": own}}))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    plain, health = 0.0, 0.0
    while any(thread.is_alive() for thread in threads):
        plain = max(plain, _answer(f"{url}/v1/completions", {})[1])
        health = max(health, _answer(f"{url}/health", None)[1])
    statuses = "/".join(str(status) for status, _ in answers)
    return f"| {name} | {statuses} | {max(seconds for _, seconds in answers):.1f} | {plain:.3f} | {health:.3f} |"


def _answer(url: str, body: dict[str, Any] | None) -> tuple[int, float]:
    """Return the status of an answer and its seconds."""
    data = None
    if body is not None:
        data = json.dumps({"model": MODEL, "prompt": _PROMPT, "max_tokens": 8, **body}).encode()
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=120) as answer:
            answer.read()
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    return status, time.perf_counter() - began


def _line_of_steps(bundle: Path, seeds: range) -> str:
    ends: Counter[str] = Counter()
    worst_step, worst_start = (0.0, ""), (0.0, "")
    with Decoder.open(bundle, threads=1, grammar_limits=GrammarLimits()) as decoder:
        decoder.prepare_grammars()
        for seed in seeds:
            options = hostile_grammar(random.Random(seed))
            began = time.process_time()
            try:
                job = decoder._job(_PROMPT, decoder.config(max_new_tokens=64, block_size=16, **options))
            except LopaError:
                ends["refused"] += 1
                continue
            worst_start = max(worst_start, (time.process_time() - began, str(options)))
            pool = decoder._pool(prompt_rows=0)
            pool.add(job)
            while not job.handle.done:
                began = time.process_time()
                pool.step()
                worst_step = max(worst_step, (time.process_time() - began, str(options)))
            pool.close()
            try:
                ends[job.handle.result().stop_reason] += 1
            except LopaError as error:
                ends[type(error).__name__] += 1
    return (
        f"{len(seeds)} random hostile grammars from seed {seeds.start}: {dict(ends)}. Most processor time of this "
        f"process for one grammar before its first token: {worst_start[0]:.3f} s (`{worst_start[1][:120]}`), "
        f"for one step: {worst_step[0]:.3f} s (`{worst_step[1][:120]}`)."
    )


if __name__ == "__main__":
    main()
