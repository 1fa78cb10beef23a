"""Clients of every kind: patient, slow, impatient and wrong. Each sends one request, judges the reply and counts it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np

from lopa.serve.openai.options import OURS
from tools.serving.bad_requests import BadRequest, bad_requests
from tools.serving.cases import Case, Cases
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


@asynccontextmanager
async def clients_of_server(
    url: str, model: str, cases: Cases, tally: Tally, patience: float
) -> AsyncIterator["Clients"]:
    """Open clients that make a connection for each request, and close them."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)]
    slow_transport = httpx2.AsyncHTTPTransport(limits=limits, socket_options=small)
    async with (
        httpx2.AsyncClient(base_url=url, timeout=None, limits=limits) as http,
        httpx2.AsyncClient(base_url=url, timeout=None, transport=slow_transport) as slow,
    ):
        yield Clients(http, slow, model, cases, bad_requests(model), tally, patience)


@dataclass(frozen=True)
class Clients:
    """Everything that the clients share."""

    http: httpx2.AsyncClient
    slow: httpx2.AsyncClient
    """Has a small buffer for what it has not read."""
    model: str
    cases: Cases
    bad: Sequence[BadRequest]
    tally: Tally
    patience: float
    """Seconds after which a request counts as lost."""

    async def ask(self, rng: np.random.Generator) -> None:
        """Send one request, in a way that is drawn, and count the outcome."""
        fate = str(rng.choice(list(FATES), p=list(FATES.values())))
        case = self.cases.distinct[int(rng.integers(len(self.cases.distinct)))]
        try:
            async with asyncio.timeout(self.patience):
                outcome = await self._outcome(fate, case, rng)
        except TimeoutError:
            outcome = "lost"
            self.tally.fault(f"{fate}: no end after {self.patience:g} seconds")
        except WrongAnswerError as error:
            outcome = "different"
            self.tally.fault(f"{fate}: {error}")
        except (httpx2.HTTPError, BadStreamError, ValueError, KeyError) as error:
            outcome = "broken"
            self.tally.fault(f"{fate}: {error!r}")
        self.tally.outcomes[outcome] += 1

    async def ask_alone(self, number: int) -> None:
        """Send one of the distinct requests while no other runs, and judge the answer."""
        try:
            async with asyncio.timeout(self.patience):
                await self._whole(self.cases.distinct[number])
        except (WrongAnswerError, BadStreamError, httpx2.HTTPError, TimeoutError) as error:
            self.tally.fault(f"case {number} alone: {error!r}")

    async def fill(self, places: int) -> None:
        """Take every place with a long request; one more has to be rejected. Then leave them all."""
        long, number = self.cases.long, 0
        try:
            async with asyncio.timeout(self.patience), AsyncExitStack() as held:
                for number in range(1, places + 2):
                    body = long.encoded(self.model, stream=True)
                    reply = await held.enter_async_context(self.http.stream("POST", long.path, content=body))
                    self.tally.left += reply.status_code == 200
                    self.tally.rejected["queue_full"] += reply.status_code == 429
                    if reply.status_code != (200 if number <= places else 429):
                        self.tally.fault(
                            f"request {number} of an idle server with {places} places got {reply.status_code}"
                        )
        except TimeoutError:
            self.tally.fault(f"{number} requests, one after another, have no place after {self.patience:g} seconds")

    async def _outcome(self, fate: str, case: Case, rng: np.random.Generator) -> str:
        drafts = bool(rng.random() < 0.3)
        moment, pieces = float(rng.random()), int(rng.integers(2, 6))
        match fate:
            case "whole":
                await self._whole(case)
            case "streamed":
                await self._streamed(case, drafts)
            case "reads slowly":
                await self._streamed(case, True, slow=True)
            case "sends slowly":
                await self._whole(case, pieces=pieces, pause=0.02 * moment)
            case "deadline":
                deadline = 0.01 + moment**2
                cut = await (self._streamed(case, drafts, deadline) if drafts else self._whole(case, deadline))
                return "cut by a deadline, a beginning" if cut else "the same as alone"
            case "bad":
                return await self._refused(self.bad[int(rng.integers(len(self.bad)))])
            case "leaves in its body" | "leaves unanswered":
                return await self._left_unheard(fate, 0.1 * moment, pieces)
            case _:
                return await self._left(fate)
        return "the same as alone"

    async def _whole(self, case: Case, deadline: float | None = None, *, pieces: int = 1, pause: float = 0.0) -> bool:
        """Check an answer that is not streamed; return whether a deadline cut it."""
        body = case.encoded(self.model, lopa=_options(deadline))
        async with self._admitted(self.http, case.path, body, pieces, pause) as reply:
            answer = await _json_of_reply(reply)
        if answer["id"] != reply.headers["x-request-id"]:
            raise WrongAnswerError(f"the answer to {answer['id']} with {reply.headers['x-request-id']}")
        return self._judged(case, answer["choices"], may_be_cut=deadline is not None)

    async def _streamed(self, case: Case, drafts: bool, deadline: float | None = None, *, slow: bool = False) -> bool:
        """Check an answer that is streamed; return whether a deadline cut it."""
        answers, body = StreamedAnswers(), _streamed(case, self.model, drafts, lopa=_options(deadline))
        async with self._admitted(self.slow if slow else self.http, case.path, body) as reply:
            await _check_admitted(reply)
            async for data in events_of_parts(reply.aiter_raw(), pause=_SLOW if slow else 0.0):
                answers.add(data)
        if not answers.whole or answers.id != reply.headers["x-request-id"]:
            raise WrongAnswerError(f"a stream {answers.id} for {reply.headers['x-request-id']}, whole or not")
        return self._judged(case, answers.choices(), may_be_cut=deadline is not None)

    def _judged(self, case: Case, choices: list[dict[str, Any]], *, may_be_cut: bool) -> bool:
        difference = case.difference(choices, may_be_cut=may_be_cut)
        if difference is not None:
            raise WrongAnswerError(difference)
        self.tally.read(case.path, choices)
        return any(choice[OURS]["stop_reason"] == "time_limit" for choice in choices)

    async def _refused(self, bad: BadRequest) -> str:
        async with self._admitted(self.http, bad.path, bad.body) as reply:
            await reply.aread()
            error = reply.json()["error"]
        found = reply.status_code, error["code"], error["param"]
        if found != (bad.status, bad.code, bad.param):
            raise WrongAnswerError(f"{bad.body[:80]!r}: {found} {error}, not {bad.status} {bad.code} {bad.param}")
        self.tally.rejected[bad.code or "bad_request"] += 1
        return "refused as it must be"

    async def _left_unheard(self, fate: str, moment: float, pieces: int) -> str:
        """Leave `moment` seconds after the whole body, or a part of it, was sent."""
        body = self.cases.long.encoded(self.model)
        content = _in_pieces(body, pieces if fate == "leaves in its body" else 1, self.patience)
        with suppress(TimeoutError):
            async with asyncio.timeout(moment):
                await self.http.post(self.cases.long.path, content=content, headers=_headers(body))
        self.tally.unheard += 1
        return fate

    async def _left(self, fate: str) -> str:
        """Leave at the head of a streamed answer, or while it runs."""
        long, answers = self.cases.long, StreamedAnswers()
        body = _streamed(long, self.model, fate == "leaves while it runs")
        async with self._admitted(self.http, long.path, body) as reply:
            await _check_admitted(reply)
            self.tally.left += 1
            if fate == "leaves while it runs":
                async for data in events_of_parts(reply.aiter_raw()):
                    answers.add(data)
                    if answers.drafts == _DRAFTS_SEEN:
                        break
        if not long.begins_with(0, answers.texts.get(0, "")):
            raise WrongAnswerError(f"{answers.texts} does not begin {long.alone[0].text!r}")
        return fate

    @asynccontextmanager
    async def _admitted(
        self, http: httpx2.AsyncClient, path: str, body: bytes, pieces: int = 1, pause: float = 0.0
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request until there is a place for it, and yield the reply, of which the head was read."""
        while True:
            content = _in_pieces(body, pieces, pause)
            async with http.stream("POST", path, content=content, headers=_headers(body)) as reply:
                if reply.status_code != 429:
                    yield reply
                    return
                await reply.aread()
                if reply.json()["error"]["code"] != "queue_full" or "retry-after" not in reply.headers:
                    raise WrongAnswerError(f"429 {reply.text} {reply.headers}")
                self.tally.rejected["queue_full"] += 1
            await asyncio.sleep(_AGAIN)


def _streamed(case: Case, model: str, drafts: bool, **more: Any) -> bytes:
    return case.encoded(model, stream=True, stream_options={"include_drafts": drafts}, **more)


def _options(deadline: float | None) -> dict[str, Any]:
    return {} if deadline is None else {"deadline": deadline}


def _headers(body: bytes) -> dict[str, str]:
    return {"content-type": "application/json", "content-length": str(len(body))}


async def _in_pieces(body: bytes, pieces: int, pause: float) -> AsyncIterator[bytes]:
    """Yield the body in so many pieces, with `pause` seconds before each but the first."""
    size = -(-len(body) // pieces) or 1
    for start in range(0, len(body), size):
        if start:
            await asyncio.sleep(pause)
        yield body[start : start + size]


async def _check_admitted(reply: httpx2.Response) -> None:
    if reply.status_code != 200:
        raise WrongAnswerError(f"{reply.status_code} {(await reply.aread()).decode()}")


async def _json_of_reply(reply: httpx2.Response) -> Any:
    await _check_admitted(reply)
    await reply.aread()
    return reply.json()
