"""Search for the fastest device for a bundle: short forwards on each available device in turn."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from lopa.bench.forward.comparison import SideResult, compare_forwards
from lopa.bench.forward.work import ForwardShape
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError, LopaError, engine_failure
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.wrapped_session import TypedSession

_ROUNDS = 5
_MARGIN = 0.05
"""Minimum relative advantage of the fastest device. A smaller one is within the variation of a machine."""


def lines_of_fastest(bundle: Bundle, devices: Sequence[str], *, report_all: bool = True) -> Iterator[str]:
    """Yield a line per device, with the reason if it does not open, and a line that names the fastest.

    With `report_all` False, devices that do not suit the bundle have no line, e.g. int8 devices for float weights.
    """
    size = bundle.manifest.decoding.block_size
    shape = ForwardShape(1, size, 64, size)  # as in most steps: a block after a short prefix, all positions sampled
    with ExitStack() as opened:
        sessions: dict[str, Session] = {}
        for device in devices:
            try:
                session = TypedSession(open_session(bundle, device))
                opened.callback(session.close)
                compare_forwards({device: session}, bundle.manifest, [shape], 1)  # a device may open and then fail
            except (LopaError, OSError, MemoryError) as error:
                failure = engine_failure(device, error, "opening")
                if report_all or not isinstance(failure, BadInputError):
                    yield f"{device}: not measured: {failure.received.splitlines()[0]}"
                continue
            sessions[device] = session
        if not sessions:
            return
        results = compare_forwards(sessions, bundle.manifest, [shape], _ROUNDS)
        for each in results:
            yield f"{each.side}: {each.median * 1e3:.3g} ms{_difference(each, results[0])}"
    yield verdict_of(results)


def verdict_of(results: Sequence[SideResult]) -> str:
    """Return the sentence that names the fastest device: the first one unless another is clearly faster."""
    first, best = results[0], min(results, key=lambda each: each.median)
    what = (
        f"a forward of {first.shape.window} tokens after {first.shape.prefix} cached ones, medians of {_ROUNDS} in turn"
    )
    if len(results) == 1:
        return f"{first.side} is the only device that opens"
    if best is first or best.median > first.median * (1 - _MARGIN):
        return f"{first.side} is the fastest, within 5 % ({what})"
    return f"{best.side} is the fastest, {best.ratio:.2f} times as fast as {first.side} ({what})"


def _difference(each: SideResult, first: SideResult) -> str:
    """Return the difference of a device's results from the first device's.

    Some devices are faster because they round more.
    """
    if each is first:
        return ""
    best = f"{each.same_best:.0%} of best tokens as on {first.side}"
    return f", {best}, log-probabilities off by {each.logprob_error:.1e}"
