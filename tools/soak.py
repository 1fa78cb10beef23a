"""Many short requests of random options through one engine, with cancels, deadlines and failures, checked one by one.

Usage: python -m tools.soak BUNDLE [--requests N] [--distinct N] [--slots N] [--submitters N] [--seed N] [--failing N]

Every request that ends by itself must give what its prompt and config give when decoded alone; one that was cut short
the beginning of it; one whose callback raised must raise just that. Some are three copies submitted at once, of which
one is cancelled. No handle may stay without an end, no cache in the session, and memory must not grow; the engine's
observer must hear of every end once, and draining must find nothing left.

With --failing N the branches are dealt over N + 1 devices (sessions on the same cores), of which N fail one after
another, in a forward, a commit or while rows are read or appended: no answer may change. Prints figures as JSON; exit
code 1 when a check failed.
"""

import gc
import json
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from tests.runtime.failing_device import FailingDevice, Failure

from lopa import (
    AdmissionReport,
    BadInputError,
    Decoder,
    DoneEvent,
    EndReport,
    Engine,
    GenerationConfig,
    GenerationResult,
    QueueFullError,
    RequestHandle,
    RoundReport,
)
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.parallel.branch_session import BranchParallelSession
from lopa.runtime.sessions.session import Session, open_session
from tools.random_configs import random_config, random_prompt

_LONGEST_SECONDS = 120.0
"""A handle that has not ended by then counts as lost."""
_FATES = ("left alone", "cancel", "deadline", "failure", "bad input", "copies")
_SHARES = (0.5, 0.15, 0.1, 0.1, 0.05, 0.1)
_COPIES = 3
_JOINING_ROWS = 128
"""So few that prompts wait for their turn."""


class InjectedError(Exception):
    """What a callback raises to make its own request fail."""


@dataclass(frozen=True)
class Reference:
    """A request and what it gives when nothing else runs."""

    prompt: tuple[int, ...]
    config: GenerationConfig
    result: GenerationResult
    seconds: float


class Ends:
    """An observer that counts."""

    def __init__(self) -> None:
        self.rounds = self.ended = 0

    def round_ended(self, _: RoundReport) -> None:
        """One more."""
        self.rounds += 1

    def request_admitted(self, _: AdmissionReport) -> None:
        """Nothing to count."""

    def request_ended(self, _: EndReport) -> None:
        """One more."""
        self.ended += 1


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--requests", default=2000, show_default=True)
@click.option("--distinct", default=60, show_default=True, help="Different requests, each decoded alone before.")
@click.option("--slots", default=6, show_default=True)
@click.option("--submitters", default=4, show_default=True, help="Threads that submit and wait.")
@click.option("--seed", default=0, show_default=True)
@click.option("--failing", type=click.IntRange(min=0), default=0, show_default=True, help="Devices that fail.")
def main(bundle: Path, requests: int, distinct: int, slots: int, submitters: int, seed: int, failing: int) -> None:
    """Run the soak on the CPU with one thread for each device."""
    rng = np.random.default_rng(seed)
    with Decoder.open(bundle, threads=1) as whole:
        references = [_decoded_alone(whole, rng) for _ in range(distinct)]
        session, devices = _session_of_failing(whole, failing, requests, rng)
        decoder = Decoder(whole.bundle, session, whole.tokenizer, threads=1)
        began, memory = time.perf_counter(), []
        found: Counter[str] = Counter()
        ends = Ends()
        with Engine(decoder, slots=slots, queue_limit=slots, joining_rows=_JOINING_ROWS, observer=ends) as engine:
            for number in range(10):
                share = requests // 10 + (number < requests % 10)
                found += _soaked(engine, references, share, submitters, seed=seed * 100 + number + 1)
                gc.collect()
                memory.append(_resident_megabytes())
            drained = engine.drain(_LONGEST_SECONDS)
        failed = sum(device.failed for device in devices)
        left = sum(session.prefix_length(number) > 0 for number in range(1, 4 * requests + 1000))
        if failing:
            session.close()
    report = {
        "requests": requests,
        "seconds": round(time.perf_counter() - began, 1),
        "outcomes": dict(sorted(found.items())),
        "drained": drained,
        "rounds": ends.rounds,
        "ends_observed": ends.ended,
        "devices_failed": failed,
        "caches_left": left,
        "threads_left": threading.active_count() - 1,
        "resident_megabytes_after_each_tenth": memory,
    }
    print(json.dumps(report, indent=2))
    bad = found["lost"] + found["different"] + found["wrong error"]
    grown = memory[-1] - memory[len(memory) // 2]
    bad += failed != failing
    bad += not drained
    bad += ends.ended != sum(found.values()) - found["refused"] + (_COPIES - 1) * _of_copies(found)
    sys.exit(1 if bad or left or report["threads_left"] or grown > 0.1 * memory[-1] else 0)


def _session_of_failing(
    decoder: Decoder, failing: int, requests: int, rng: np.random.Generator
) -> tuple[Session, list[FailingDevice]]:
    """The decoder's own session, or one over several of which all but the last fail, spread over the soak."""
    if not failing:
        return decoder.session, []
    devices = []
    for number in range(failing + 1):
        method = str(rng.choice(["forward", "commit", "read_rows", "append_rows"]))
        call = (1 + 2 * number) * requests // (4 * failing + 4) + 1
        failure = Failure(method, call) if number < failing else None
        devices.append(FailingDevice(open_session(decoder.bundle, "cpu", threads=1), f"device {number}", failure))
    return BranchParallelSession(devices), devices


def _decoded_alone(decoder: Decoder, rng: np.random.Generator) -> Reference:
    prompt, config = random_prompt(rng, decoder), random_config(rng, decoder)
    began = time.perf_counter()
    *_, last = decoder.stream(prompt, config)
    assert isinstance(last, DoneEvent)
    return Reference(prompt, config, last.result, time.perf_counter() - began)


def _soaked(engine: Engine, references: list[Reference], requests: int, submitters: int, *, seed: int) -> Counter[str]:
    """How requests ended, by kind."""
    with ThreadPoolExecutor(submitters) as threads:
        streams = np.random.default_rng(seed).spawn(requests)
        return Counter(threads.map(lambda rng: _outcome(engine, references, rng), streams))


def _outcome(engine: Engine, references: list[Reference], rng: np.random.Generator) -> str:
    """Submit one request, disturb it at random, and say how it ended."""
    reference = references[rng.integers(len(references))]
    fate = str(rng.choice(_FATES, p=_SHARES))
    fatal_step = int(rng.integers(1, 4))

    def on_step(step: Step) -> None:
        if fate == "failure" and step.number == fatal_step:
            raise InjectedError(fatal_step)

    moment = float(rng.uniform(0, 4)) * reference.seconds
    while True:
        try:
            if fate == "copies":
                return _outcome_of_copies(
                    engine.submit_many([reference.prompt] * _COPIES, reference.config), reference, moment
                )
            handle = engine.submit(
                () if fate == "bad input" else reference.prompt,
                reference.config,
                deadline=moment if fate == "deadline" else None,
                drafts=bool(rng.random() < 0.1),
                on_step=on_step,
            )
            break
        except QueueFullError:
            time.sleep(0.002)
        except BadInputError:
            return "refused" if fate == "bad input" else "wrong error"
    if fate == "cancel":
        time.sleep(moment)
        handle.cancel()
    try:
        result = handle.result(_LONGEST_SECONDS)
    except TimeoutError:
        return "lost"
    except InjectedError:
        return "failed as injected" if fate == "failure" else "wrong error"
    return _judged(result, reference.result, fate)


def _outcome_of_copies(handles: tuple[RequestHandle, ...], reference: Reference, moment: float) -> str:
    """Cancel the first of copies, and say how all of them ended."""
    time.sleep(moment)
    handles[0].cancel()
    try:
        first, *others = (handle.result(_LONGEST_SECONDS) for handle in handles)
    except TimeoutError:
        return "lost"
    if {_judged(result, reference.result, "left alone") for result in others} != {"the same as alone"}:
        return "different"
    cancelled = _judged(first, reference.result, "cancel")
    return {"the same as alone": "copies, all whole", "different": "different"}.get(cancelled, "copies, one cancelled")


def _of_copies(found: Counter[str]) -> int:
    return sum(count for kind, count in found.items() if kind.startswith("copies"))


def _judged(result: GenerationResult, alone: GenerationResult, fate: str) -> str:
    """How a result stands to the one that the same request gives alone."""
    cut = {"cancel": "cancelled", "deadline": "time_limit"}.get(fate)
    if cut is not None and result.stop_reason == cut:
        # The first `tokens` ids are the committed ones; in published mode undecided positions follow.
        begins = alone.token_ids[: result.tokens] == result.token_ids[: result.tokens]
        return f"{cut}, a beginning" if begins else "different"
    same = (result.token_ids, result.text, result.stop_reason) == (alone.token_ids, alone.text, alone.stop_reason)
    # A round that only keeps a prompt's rows, which Fast-dLLM v2's cache begins with, falls away where they are stored.
    same = same and alone.steps - result.steps in ((0, 1) if result.reused_rows else (0,))
    return "the same as alone" if same else "different"


def _resident_megabytes() -> float:
    """Memory of this process; 0 where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)


if __name__ == "__main__":
    main()
