"""Short decodes of arbitrary bundles, as applications do them."""

import contextlib
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

from lopa import Decoder, DoneEvent, GenerationConfig, GenerationOptions
from lopa.cli.commands import COMMANDS
from lopa.cli.main import main
from lopa.runtime.errors import BadInputError

# Import commands before forking, so that no case pays for it or sees other file versions.
for _name in COMMANDS.values():
    importlib.import_module(_name)

PROMPT = "Question: 2 + 3?\nAnswer:"
OPTIONS: GenerationOptions = {"branches": 2, "block_size": 8, "max_new_tokens": 16}


def answer_of_bundle(
    path: Path, devices: Sequence[str] = ("cpu",), config: GenerationConfig | None = None, prompt: object = PROMPT
) -> list[int]:
    """Return the token ids of an answer, a short one by default."""
    with Decoder.open(path, devices=devices, threads=1) as decoder:
        return answer_of_decoder(decoder, config or decoder.config(**OPTIONS), prompt)


def answer_of_decoder(decoder: Decoder, config: GenerationConfig, prompt: object = PROMPT) -> list[int]:
    """Return the token ids of an answer."""
    ids: list[int] = []
    for event in decoder.stream(prompt, config):  # type: ignore[arg-type]
        if isinstance(event, DoneEvent):
            ids = list(event.result.token_ids)
    return ids


def run_command(*arguments: object) -> int:
    """Run lopa-export, and return its exit code 0.

    Raises BadInputError for an exit code that is documented for user errors or failed checks, and RuntimeError for any
    other.
    """
    try:
        with contextlib.suppress(BrokenPipeError):
            main([str(argument) for argument in arguments])
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        code = ended.code
        # A mutated bundle may fail its verification.
        if code in (2, 3) or (code == 1 and "verify" in arguments):
            raise BadInputError("the command line", expected="exit code 2 or 3", remedy="none") from None
        if code:
            raise RuntimeError(f"exit code {code!r}") from ended
    return 0


def forked_command(arguments: Sequence[object], log: Path) -> int:
    """Start lopa-export in a forked process that logs its standard error, and return its id.

    A new process would need a second for its imports.
    """
    log.touch()
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
        threading.excepthook, sys.unraisablehook = threading.__excepthook__, sys.__unraisablehook__
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
