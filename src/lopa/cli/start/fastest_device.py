"""Which device of this machine is the fastest for a bundle: short forwards on each that opens, in turn."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from lopa.bench.forward.comparison import SideResult, compared_forwards
from lopa.bench.forward.work import ForwardShape
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import LopaError, MissingBackendError
from lopa.runtime.openvino.session import open_session as open_openvino
from lopa.runtime.sessions.session import Session, open_session

_PLAIN, _CHOOSES = "openvino:CPU", "openvino:CPU:auto"
_SHAPE = ForwardShape(1, 32, 64, 32)
"""One block behind a short prefix, every row wanted: what most steps of one branch are like."""
_ROUNDS = 5
_CLEARLY = 0.05
"""By which share another device has to be faster to be called so: less is what a machine varies by."""


def lines_of_fastest(bundle: Bundle, devices: Sequence[str], *, tell_all: bool = True) -> Iterator[str]:
    """A line for every device, and one that names the fastest and by how much; what does not open says why.

    Where openvino:CPU opens, also what openvino:CPU:auto takes. `tell_all` False: no line for a device that is not
    meant for this bundle, as int8 is not for weights that are floats.
    """
    with ExitStack() as opened:
        sessions: dict[str, Session] = {}
        for device in devices:
            try:
                sessions[device] = open_session(bundle, device)
            except LopaError as error:
                if tell_all or isinstance(error, MissingBackendError):
                    yield f"{device}: not measured: {error.received.splitlines()[0]}"
                continue
            opened.callback(sessions[device].close)
        if not sessions:
            return
        results = compared_forwards(sessions, bundle.manifest, [_SHAPE], _ROUNDS)
        for each in results:
            yield f"{each.side}: {each.median * 1e3:.3g} ms{_difference(each, results[0])}"
        if _PLAIN in sessions:
            with closing(open_openvino(bundle, _CHOOSES, threads=None)) as chosen:  # of the models that are open
                yield f"{_CHOOSES} takes {chosen.choice}"
    yield verdict_of(results)


def verdict_of(results: Sequence[SideResult]) -> str:
    """The sentence with the fastest device: the first one unless another is clearly faster."""
    first, best = results[0], min(results, key=lambda each: each.median)
    what = f"a forward of {first.shape.window} rows behind {first.shape.prefix}, medians of {_ROUNDS} in turn"
    if len(results) == 1:
        return f"{first.side} is the only one that opens"
    if best is first or best.median > first.median * (1 - _CLEARLY):
        return f"{first.side} is the fastest, or as fast as the fastest ({what})"
    return f"{best.side} is the fastest, {best.ratio:.2f} times as fast as {first.side} ({what})"


def _difference(each: SideResult, first: SideResult) -> str:
    """How far its answers are from the first device's: a device that rounds more is faster for a price."""
    if each is first:
        return ""
    best = f"{each.same_best:.0%} the same best tokens as {first.side}"
    return f", {best}, log-probabilities off by {each.logprob_error:.1e}"
