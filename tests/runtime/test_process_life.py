"""Decoders and engines in whole processes: the interpreter's end, forks, Ctrl-C and limits. Each test runs programs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import os, sys, threading, time
from lopa import *
B = sys.argv[1]
P = "Question: Sam owns 3 balloons. How many balloons does Sam have?\\nAnswer:"
LONG = dict(max_new_tokens=1900, strategy="sequential", stop_at_eos=False)
def forever(*calls):
    def loop(call):
        while True:
            call()
    for call in calls:
        threading.Thread(target=loop, args=(call,), daemon=True).start()
"""

ENDS = {
    "an engine with running requests": """
engine = Engine.open(B)
handles = [engine.submit(P, **LONG) for _ in range(3)]
next(iter(handles[0]))
""",
    "an engine whose callback hangs": """
engine, reached = Engine.open(B), threading.Event()
engine.submit(P, on_step=lambda step: (reached.set(), time.sleep(1e6)))
reached.wait()
""",
    "daemon threads that decode, with and without a grammar": """
decoder = Decoder.open(B)
forever(*[lambda: decoder.generate(P), lambda: decoder.generate(P, regex="(a|b)+c", max_new_tokens=8)] * 2)
time.sleep(0.5)
""",
    "a decoder that atexit uses": """
import atexit
decoder = Decoder.open(B)
atexit.register(lambda: print(decoder.generate(P, max_new_tokens=64).stop_reason))
forever(lambda: decoder.generate(P))
time.sleep(0.2)
""",
}
PRINTS = {"a decoder that atexit uses": "eos\n"}


def run(program: str, bundle: Path, *, code: int = 0) -> str:
    """Return the output of a program that ends with `code`."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HEAD + program, str(bundle)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if "hangs" in name else ()) for name in ENDS],
)
def test_a_program_ends_with(tiny_bundle: Path, name: str) -> None:
    assert run(ENDS[name], tiny_bundle) == PRINTS.get(name, "")


def test_two_interrupts_end_a_program_with_an_engine(tiny_bundle: Path) -> None:
    run(
        """
import signal
def interrupt():
    for _ in range(2):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
with Engine.open(B) as engine:
    handles = [engine.submit(P, **LONG) for _ in range(8)]
    next(iter(handles[0]))
    threading.Thread(target=interrupt, daemon=True).start()
    time.sleep(60)
""",
        tiny_bundle,
        code=-signal.SIGINT,
    )


FORKS = """
decoder = Decoder.open(B)
text = decoder.generate(P).text
stream = decoder.stream(P, **LONG)
next(stream)
engine = Engine.open(B)
handle = engine.submit(P, **LONG)
next(iter(handle))
forever(lambda: decoder.generate(P), lambda: engine.status)

def refused(kind, call):
    try:
        call()
    except kind as error:
        assert "another process" in str(error), error
    else:
        raise AssertionError("not refused")

def close():
    decoder.close()
    engine.close()

def delete():
    global decoder, engine, stream
    del decoder, engine, stream
    gc.collect()

def use():
    refused(DecoderClosedError, lambda: decoder.generate(P))
    refused(DecoderClosedError, lambda: list(stream))
    refused(DecoderClosedError, lambda: Engine(decoder))
    refused(DecoderClosedError, lambda: decoder.check_grammar(decoder.config(regex="[0-9]x")))
    refused(DecoderClosedError, lambda: list(decoder.handles([P], decoder.config(regex="[0-9]x"))))
    refused(DecoderClosedError, decoder.prepare_grammars)
    refused(EngineClosedError, lambda: engine.submit(P))
    refused(EngineClosedError, handle.result)
    refused(EngineClosedError, lambda: list(handle))
    assert engine.closed and engine.status.closed

def reopen():
    with Decoder.open(B) as own, Engine.open(B) as other:
        assert own.generate(P).text == other.submit(P).result().text == text

import gc
for action in (lambda: None, close, delete, use, reopen):
    time.sleep(0.5)  # idle threads of ONNX Runtime sleep
    child = os.fork()  # while no thread opens a bundle: ONNX Runtime's locks would be copied locked
    if not child:
        action()
        sys.exit(0)
    for _ in range(1000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
        raise AssertionError(f"{action} hangs")
    assert not status, (action, status)
handle.cancel()
assert handle.result().stop_reason == "cancelled"
assert engine.submit(P).result().text == decoder.generate(P).text == text  # the parent goes on
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_children_end_and_are_refused_what_the_parent_opened(tiny_bundle: Path) -> None:
    run(FORKS, tiny_bundle)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_limits_that_are_reached_are_named(tiny_bundle: Path) -> None:
    assert run(
        """
import resource
from lopa.runtime.files.untrusted_input import value_from_json
decoder = Decoder.open(B, threads=1, grammar_limits=GrammarLimits())
assert decoder.has_grammars
files, (soft, hard) = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (files - 1, hard))
for call in (lambda: decoder.generate("Q", regex="a+b", max_new_tokens=8), decoder.prepare_grammars):
    try:
        call()
    except GrammarHelperError as error:
        print(error.received)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
decoder.close()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**21, -1))
try:
    Decoder.open(B)
except ResourceExhaustedError as error:
    print(error.received.replace(B, "BUNDLE"), error.exit_code)
""",
        tiny_bundle,
    ).splitlines() == [
        *["the grammar helper process cannot be used: Too many open files"] * 2,
        "BUNDLE/manifest.json: MemoryError 3",
    ]
