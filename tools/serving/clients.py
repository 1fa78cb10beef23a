"""Clients of every kind: patient, slow, impatient and wrong. Each asks once, judges what it gets and counts it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from lopa.serve.openai.options import OURS
from tools.serving.bad_requests import BadRequest
from tools.serving.cases import Case
from tools.serving.connection import Address, Connection, Head, connected
from tools.serving.events import BadStreamError, StreamedAnswers, events_of_parts
from tools.serving.tally import Tally

FATES = {
    "whole": 0.24,
    "streamed": 0.24,
    "reads slowly": 0.06,
    "sends slowly": 0.06,
    "deadline": 0.08,
    "leaves in its body": 0.05,
    "leaves unanswered": 0.05,
    "leaves at the head": 0.06,
    "leaves while it runs": 0.06,
    "bad": 0.1,
}
"""What becomes of a request, and the share of each."""
_AGAIN = 0.05
"""Seconds after which one that was turned away asks again: many are, and nobody shall wait long for a place."""
_SMALL = 4096
"""Bytes that a slow reader's system keeps for it."""
_SLOW = 0.002
"""Seconds before each part that it reads."""
_DRAFTS_SEEN = 2


class WrongAnswerError(Exception):
    """An answer that is not the one that had to come."""


@dataclass(frozen=True)
class Clients:
    """What all clients know."""

    address: Address
    model: str
    cases: Sequence[Case]
    long: Case
    """What is left before its end."""
    bad: Sequence[BadRequest]
    tally: Tally
    patience: float
    """Seconds after which a request counts as lost."""

    async def ask(self, rng: np.random.Generator) -> None:
        """Ask once, in a way that is drawn, and count the outcome."""
        fate = str(rng.choice(list(FATES), p=list(FATES.values())))
        case = self.cases[int(rng.integers(len(self.cases)))]
        try:
            async with asyncio.timeout(self.patience):
                outcome = await self._outcome(fate, case, rng)
        except TimeoutError:
            outcome = "lost"
            self.tally.fault(f"{fate}: no end after {self.patience:g} seconds")
        except WrongAnswerError as error:
            outcome = "different"
            self.tally.fault(f"{fate}: {error}")
        except (OSError, BadStreamError, ValueError, KeyError) as error:
            outcome = "broken"
            self.tally.fault(f"{fate}: {error!r}")
        self.tally.outcomes[outcome] += 1

    async def ask_alone(self, case: Case) -> None:
        """Ask and judge, for who asks nothing else meanwhile. Raises what `ask` counts."""
        async with asyncio.timeout(self.patience):
            await self._whole(case, case.encoded(self.model))

    async def fill(self, places: int) -> None:
        """Take every place with a long request; one more has to be turned away. Then leave them all."""
        streamed = self.long.encoded(self.model, stream=True)
        held: list[Any] = []
        try:
            async with asyncio.timeout(self.patience):
                for number in range(places + 1):
                    opened = connected(self.address)
                    connection = await opened.__aenter__()
                    held.append(opened)
                    await connection.send(self.long.path, streamed)
                    status = (await connection.head()).status
                    self.tally.left += status == 200
                    self.tally.rejected["queue_full"] += status == 429
                    if status != (200 if number < places else 429):
                        self.tally.fault(f"request {number + 1} of an idle server with {places} places got {status}")
        except TimeoutError:
            self.tally.fault(f"{len(held)} requests, one after another, have no place after {self.patience:g} seconds")
        finally:
            for opened in held:
                await opened.__aexit__(None, None, None)

    async def _outcome(self, fate: str, case: Case, rng: np.random.Generator) -> str:
        drafts = bool(rng.random() < 0.3)
        moment, pieces = float(rng.random()), int(rng.integers(2, 6))
        match fate:
            case "whole":
                await self._whole(case, case.encoded(self.model))
            case "streamed":
                await self._streamed(case, _streamed(case, self.model, drafts))
            case "reads slowly":
                body = _streamed(case, self.model, True)
                await self._streamed(case, body, receive_bytes=_SMALL, reading_pause=_SLOW)
            case "sends slowly":
                await self._whole(case, case.encoded(self.model), pieces=pieces, pause=0.02 * moment)
            case "deadline":
                deadline = {"deadline": 0.01 + moment**2}
                if drafts:
                    body = _streamed(case, self.model, drafts, lopa=deadline)
                    cut = await self._streamed(case, body, may_be_cut=True)
                else:
                    cut = await self._whole(case, case.encoded(self.model, lopa=deadline), may_be_cut=True)
                return "cut by a deadline, a beginning" if cut else "the same as alone"
            case "bad":
                return await self._refused(self.bad[int(rng.integers(len(self.bad)))])
            case _:
                return await self._left(fate, 0.1 * moment, pieces)
        return "the same as alone"

    async def _whole(
        self, case: Case, body: bytes, *, pieces: int = 1, pause: float = 0.0, may_be_cut: bool = False
    ) -> bool:
        """Whether a deadline cut something of an answer that is not streamed."""
        async with self._let_in(case.path, body, pieces=pieces, pause=pause) as (connection, head):
            told = await connection.body(head)
            if head.status != 200:
                raise WrongAnswerError(f"{head.status} {told}")
            if told["id"] != head.headers["x-request-id"]:
                raise WrongAnswerError(f"the answer to {told['id']} with {head.headers['x-request-id']}")
        return self._judged(case, told["choices"], may_be_cut)

    async def _streamed(
        self,
        case: Case,
        body: bytes,
        *,
        receive_bytes: int | None = None,
        reading_pause: float = 0.0,
        may_be_cut: bool = False,
    ) -> bool:
        """As `_whole`, of an answer that is streamed."""
        answers = StreamedAnswers()
        async with self._let_in(case.path, body, receive_bytes=receive_bytes) as (connection, head):
            if head.status != 200:
                raise WrongAnswerError(f"{head.status} {await connection.body(head)}")
            async for data in events_of_parts(connection.parts(pause=reading_pause)):
                answers.add(data)
            if not answers.whole or answers.id != head.headers["x-request-id"]:
                raise WrongAnswerError(f"a stream {answers.id} for {head.headers['x-request-id']}, whole or not")
        return self._judged(case, answers.choices(), may_be_cut)

    def _judged(self, case: Case, choices: list[dict[str, Any]], may_be_cut: bool) -> bool:
        difference = case.difference(choices, may_be_cut=may_be_cut)
        if difference is not None:
            raise WrongAnswerError(difference)
        self.tally.read(case.path, choices)
        return any(choice[OURS]["stop_reason"] == "time_limit" for choice in choices)

    async def _refused(self, bad: BadRequest) -> str:
        async with self._let_in(bad.path, bad.body, announced=bad.announced) as (connection, head):
            error = (await connection.body(head))["error"]
        if (head.status, error["code"]) != (bad.status, bad.code) or error["param"] != bad.param:
            raise WrongAnswerError(f"{bad.body[:80]!r}: {head.status} {error}, not {bad.status} {bad.code} {bad.param}")
        self.tally.rejected[bad.code or "bad_request"] += 1
        return "refused as it must be"

    async def _left(self, fate: str, moment: float, pieces: int) -> str:
        """Go away after `moment` seconds, or as soon as what `fate` names has come."""
        long = self.long
        if fate in ("leaves in its body", "leaves unanswered"):
            body = long.encoded(self.model)
            async with connected(self.address) as connection:
                connection.begin(long.path, len(body))
                connection.push(body[: len(body) // pieces] if fate == "leaves in its body" else body)
                await asyncio.sleep(moment)
            self.tally.unheard += 1
            return fate
        streamed = _streamed(long, self.model, fate == "leaves while it runs")
        answers = StreamedAnswers()
        async with self._let_in(long.path, streamed) as (connection, head):
            if head.status != 200:
                raise WrongAnswerError(f"{head.status} {await connection.body(head)}")
            self.tally.left += 1
            if fate == "leaves while it runs":
                async for data in events_of_parts(connection.parts()):
                    answers.add(data)
                    if answers.drafts == _DRAFTS_SEEN:
                        break
        if not long.begins_with(0, answers.texts.get(0, "")):
            raise WrongAnswerError(f"{answers.texts} does not begin {long.alone[0].text!r}")
        return fate

    @asynccontextmanager
    async def _let_in(
        self,
        path: str,
        body: bytes,
        *,
        pieces: int = 1,
        pause: float = 0.0,
        receive_bytes: int | None = None,
        announced: int | None = None,
    ) -> AsyncIterator[tuple[Connection, Head]]:
        """Ask until there is a place; what the answer begins with, and the connection behind it."""
        while True:
            async with connected(self.address, receive_bytes=receive_bytes) as connection:
                if announced is None:
                    await connection.send(path, body, pieces=pieces, pause=pause)
                else:
                    connection.begin(path, announced)
                head = await connection.head()
                if head.status != 429:
                    yield connection, head
                    return
                told = (await connection.body(head))["error"]
                if told["code"] != "queue_full" or "retry-after" not in head.headers:
                    raise WrongAnswerError(f"429 {told} {head.headers}")
                self.tally.rejected["queue_full"] += 1
            await asyncio.sleep(_AGAIN)


def _streamed(case: Case, model: str, drafts: bool, **more: Any) -> bytes:
    return case.encoded(model, stream=True, stream_options={"include_drafts": drafts}, **more)
