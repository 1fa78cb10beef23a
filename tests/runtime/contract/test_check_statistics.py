"""NaN, infinity and token ids outside the vocabulary fail the affected request, on every device."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.outcomes import outcomes
from tests.runtime.sequential import slots_of_sampled_rows

from lopa.runtime import Decoder, NonFiniteAnswerError
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Statistics
from lopa.runtime.contract.row_statistics import RowStatistics, check_statistics
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession
from lopa.runtime.text.tokenizer import Tokenizer

PROMPT = "Question: 2 + 3?\nAnswer:"


def rows() -> RowStatistics:
    return RowStatistics(
        np.tile(np.arange(8), (2, 3, 1)), np.full((2, 3, 8), -2.0, np.float32), np.ones((2, 3), np.float32)
    )


def rows_with(name: str, place: tuple[int, ...], value: float) -> RowStatistics:
    found = rows()
    getattr(found, name)[place] = value
    return found


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("entropy", (1, 2), np.nan),
        ("entropy", (0, 0), np.inf),
        ("topk_logprobs", (1, 1, 0), -np.inf),
        ("topk_logprobs", (1, 1, 0), np.nan),
        ("topk_logprobs", (0, 1, 7), np.nan),
        ("topk_ids", (1, 2, 7), 1024),
    ],
)
def test_invalid_statistics_raise(name: str, place: tuple[int, ...], value: float) -> None:
    with pytest.raises(NonFiniteAnswerError, match=r"^cuda:3 .* in step 9"):
        check_statistics(rows_with(name, place, value), 1024, device="cuda:3", step=9)


def test_an_underflowed_probability_is_accepted() -> None:
    check_statistics(rows(), 1024, device="cpu", step=1)
    check_statistics(rows_with("topk_logprobs", (0, 1, 7), -np.inf), 1024, device="cpu", step=1)


def corrupt_bundle(bundle: Path, target: Path, value: float) -> Path:
    """Copy the bundle and write `value` into a bias of the last layer, which affects every row."""
    shutil.copytree(bundle, target)
    opened = Bundle.open(target)
    record = opened.manifest.tensors["layers.4.attention.value.bias"]
    content = np.memmap(opened.weights, np.uint8, mode="r+")
    content[record.offset : record.offset + 4].view(np.float32)[:] = value
    content.flush()
    return target


@pytest.mark.parametrize("value", [np.nan])
@pytest.mark.parametrize("devices", [["numpy"], ["cpu", "cpu"]], ids=",".join)
def test_broken_weights_fail_the_request(tiny_bundle: Path, tmp_path: Path, devices: list[str], value: float) -> None:
    bundle = Bundle.open(corrupt_bundle(tiny_bundle, tmp_path / "bundle", value))
    sessions = [open_session(bundle, device, threads=1) for device in devices]
    session = sessions[0] if len(sessions) == 1 else BranchParallelSession(sessions)
    with Decoder(bundle, session, Tokenizer.open(bundle), threads=1) as decoder:
        for published in (False, True):
            config = decoder.config(max_new_tokens=32, reference=published)
            with pytest.raises(NonFiniteAnswerError, match="in step 1"):
                list(decoder.stream(PROMPT, config))
        assert all(isinstance(each, NonFiniteAnswerError) for each in outcomes(decoder, [PROMPT] * 3, max_num_seqs=2))


class BrokenSession(WrappedSession):
    """Session that returns `value` in the statistics `name` of one request from its third forward on."""

    def __init__(self, session: Session, name: str, value: float) -> None:
        super().__init__(session)
        self._name, self._value = name, value
        self._forwards = 0
        self.request: int | None = None

    def wait(self, ticket: Ticket) -> Statistics:
        batch, answer = ticket.batch, self._inner.wait(ticket)
        self._forwards += 1
        changed = getattr(answer, self._name).copy()
        if self.request is None:
            self.request = batch.requests[0]
        if self._forwards >= 3 and self.request in batch.requests:
            changed[np.flatnonzero(slots_of_sampled_rows(batch) == batch.requests.index(self.request))[0]] = self._value
        return dataclasses.replace(answer, **{self._name: changed})


@pytest.mark.parametrize("name", ["entropy", "topk_ids"])
def test_other_requests_of_the_same_forward_continue(tiny_bundle: Path, name: str) -> None:
    """A request ends by NaN, and by the mask token as its only candidate."""
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        config = decoder.config(max_new_tokens=48, strategy="vanilla")
        prompts = [PROMPT, "Question: 7 + 1?\nAnswer:"]
        expected = decoder.generate(prompts, config)[1].token_ids
        value = np.nan if name == "entropy" else decoder.bundle.manifest.special_tokens.mask
        session = BrokenSession(decoder.session, name, value)
        broken = Decoder(decoder.bundle, session, decoder.tokenizer, threads=1)
        first, second = outcomes(broken, prompts, config, max_num_seqs=2)
        assert isinstance(first, NonFiniteAnswerError)
        assert second.token_ids == expected
        assert not decoder.session._caches  # type: ignore[attr-defined]
