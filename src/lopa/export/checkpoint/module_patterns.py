"""Regular expressions over module names, matched in a process with limited time and memory.

The expressions come from an adapter's configuration, and Python's matcher takes exponential time for some of them.
"""

import json
import subprocess
import sys
from collections.abc import Sequence

from lopa.runtime.errors import BadInputError

_MAX_SECONDS = 5
"""Time limit of a call for all patterns and names. One pattern for each of 560 modules takes less than a second."""
_MAX_BYTES = 2**29
_EXPECTED = f"regular expressions that match every module within {_MAX_SECONDS} s and {_MAX_BYTES // 2**20} MiB"
_REMEDY = "name the modules in full in the adapter's configuration"
_PROGRAM = """
import json, re, sys, warnings
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
except (ImportError, ValueError, OSError):  # outside Linux only the time is limited
    pass
warnings.simplefilter("ignore")
patterns, names = json.load(sys.stdin)
compiled = []
for pattern in patterns:
    try:
        compiled.append(re.compile(pattern))
    except Exception as error:
        json.dump({"pattern": pattern, "error": str(error) or type(error).__name__}, sys.stdout)
        sys.exit()
json.dump([next((i for i, each in enumerate(compiled) if each.fullmatch(name)), None) for name in names], sys.stdout)
"""


def first_matches(patterns: Sequence[str], names: Sequence[str], *, source: str) -> list[int | None]:
    """Return for each of `names` the index of the first pattern that matches all of it, or None.

    Raises BadInputError, which names the file `source`, for an invalid regular expression and when a limit is exceeded.
    """
    if not patterns:
        return [None] * len(names)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_MAX_BYTES)],
            input=json.dumps([patterns, names]).encode(),
            capture_output=True,
            timeout=_MAX_SECONDS,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        received = f"{source} has patterns that take too much time or memory, among them {patterns[0][:100]!r}"
        raise BadInputError(received, expected=_EXPECTED, remedy=_REMEDY) from error
    found: list[int | None] | dict[str, str] = json.loads(done.stdout)
    if isinstance(found, dict):
        received = f"{source} has the pattern {found['pattern'][:100]!r}: {found['error'][:200]}"
        raise BadInputError(received, expected=_EXPECTED, remedy=_REMEDY)
    return found
