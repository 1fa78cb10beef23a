"""Run cases with every possible ending in the fuzzer's worker, and print a line for each.

This is a separate process, since the worker forks and pytest's process has threads.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tools.fuzz import worker
from tools.fuzz.case import Case, Material

from lopa.runtime.errors import BadInputError


def _refuses() -> object:
    raise BadInputError("a", expected="b", remedy="c")


def _hides_memory() -> object:
    try:
        return _allocates()
    except MemoryError as error:
        raise BadInputError("a", expected="b", remedy="c") from error


def _exits() -> object:
    os._exit(3)


def _crashes() -> object:
    os.kill(os.getpid(), signal.SIGSEGV)
    return None


def _hangs() -> object:
    while True:
        pass


def _sleeps() -> object:
    time.sleep(1000)
    return None


def _allocates() -> object:
    return len(np.ones(2**40))


def _waits_for_nothing() -> object:
    raise TimeoutError("of another process")


def _loses_a_process() -> object:
    raise ChildProcessError("of another process")


def _fails() -> object:
    raise KeyError("x")


def _prints() -> object:
    print("Traceback (most recent call last):", file=sys.stderr)
    return [1]


ENDS = {
    "same": (lambda: [1], [1]),
    "fine": (lambda: [1], None),
    "differ": (lambda: [2], [1]),
    "typed": (_refuses, None),
    "foreign": (_fails, None),
    "foreign-printed": (_prints, [1]),
    "memory": (_allocates, None),
    "memory-hidden": (_hides_memory, None),
    "crash": (_crashes, None),
    "crash-silent": (_exits, None),
    "hang": (_hangs, None),
    "hang-asleep": (_sleeps, None),
    "hang-elsewhere": (_waits_for_nothing, None),
    "crash-elsewhere": (_loses_a_process, None),
}


def _kind(name: str) -> worker.MakeCase:
    run, expected = ENDS[name]
    return lambda _rng, _folder, _material: Case("words", run, expected)


def main() -> None:
    """Run all cases with short limits."""
    worker.PROCESSOR_SECONDS, worker.WALL_SECONDS = 1, 5.0
    nothing = Material(Path(), Path(), Path(), Path())
    with tempfile.TemporaryDirectory() as place:
        case_ids = [worker.CaseId(name, 7, Path(place, name)) for name in ENDS]
        for one in worker.run_cases(case_ids, {name: _kind(name) for name in ENDS}, nothing, jobs=2):
            print(one.name, one.found, one.bad, one.mutation)


if __name__ == "__main__":
    main()
