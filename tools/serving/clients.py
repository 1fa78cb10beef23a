"""Clients of a server: patient, slow, impatient, invalid and hostile. Each sends a request, and checks and counts the
reply."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np

from lopa.serve.openai.body_options import LOPA_FIELD, MESSAGES
from tools.serving.bad_requests import BadRequest, bad_requests, hostile_requests
from tools.serving.cases import ServingCase, ServingCases
from tools.serving.events import BadStreamError, events_of_parts, streamed_reply
from tools.serving.replies import choices_of_reply
from tools.serving.tally import Tally

MIXES = {
    "soak": {
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
    },
    "load": {"whole": 0.5, "streamed": 0.5},
    "hostile": {"whole": 0.5, "hostile": 0.5},
}
"""Behaviours of clients with their shares, by name of the mix."""
_RETRY_SECONDS = 0.05
"""Seconds until a rejected client retries. Many are rejected, and none should wait long for a slot."""
_SMALL_BUFFER = 4096
"""Receive buffer of a slow reader in bytes."""
_READ_PAUSE = 0.002
"""Seconds before each part that a slow reader reads."""
_DRAFTS_SEEN = 2


class WrongAnswerError(Exception):
    """An answer that differs from the expected one."""


@asynccontextmanager
async def clients_of_server(
    url: str, model: str, cases: ServingCases, tally: Tally, timeout: float, mix: str
) -> AsyncIterator["Clients"]:
    """Open clients that use a new connection per request, and close them."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)]
    slow_transport = httpx2.AsyncHTTPTransport(limits=limits, socket_options=small)
    async with (
        httpx2.AsyncClient(base_url=url, timeout=None, limits=limits) as http,
        httpx2.AsyncClient(base_url=url, timeout=None, transport=slow_transport) as slow,
    ):
        bad = {"bad": bad_requests(model), "hostile": tuple(hostile_requests(model))}
        yield Clients(http, slow, model, cases, bad, tally, timeout, MIXES[mix])


@dataclass(frozen=True)
class Clients:
    """State that all clients share."""

    http: httpx2.AsyncClient
    slow: httpx2.AsyncClient
    """HTTP client with a small receive buffer."""
    model: str
    cases: ServingCases
    bad: Mapping[str, Sequence[BadRequest]]
    """Requests that must be rejected, by behaviour."""
    tally: Tally
    timeout: float
    """Seconds after which a request counts as lost."""
    mix: Mapping[str, float]
    """Behaviours and their shares."""

    async def send(self, rng: np.random.Generator) -> None:
        """Send one request with a random behaviour, and count the outcome."""
        behaviour = str(rng.choice(list(self.mix), p=list(self.mix.values())))
        case = self.cases.distinct[int(rng.integers(len(self.cases.distinct)))]
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout):
                outcome = await self._outcome(behaviour, case, rng)
        except TimeoutError:
            outcome = "lost"
            self.tally.fault(f"{behaviour}: no end after {self.timeout:g} seconds")
        except WrongAnswerError as error:
            outcome = "different"
            self.tally.fault(f"{behaviour}: {error}")
        except (httpx2.HTTPError, BadStreamError, ValueError, KeyError) as error:
            outcome = "broken"
            self.tally.fault(f"{behaviour}: {error!r}")
        self.tally.outcomes[outcome] += 1
        self.tally.seconds[behaviour].append(time.perf_counter() - began)

    async def send_alone(self, number: int) -> None:
        """Send one of the distinct requests while no other runs, and check the answer."""
        try:
            async with asyncio.timeout(self.timeout):
                await self._check_whole(self.cases.distinct[number])
        except (WrongAnswerError, BadStreamError, httpx2.HTTPError, TimeoutError) as error:
            self.tally.fault(f"case {number} alone: {error!r}")

    async def fill(self, capacity: int) -> None:
        """Fill every slot with a long request, check that one more is rejected, then disconnect from all."""
        long, number = self.cases.long[0], 0
        try:
            async with asyncio.timeout(self.timeout), AsyncExitStack() as held:
                for number in range(1, capacity + 2):
                    body = long.encode(self.model, stream=True)
                    reply = await held.enter_async_context(self.http.stream("POST", long.path, content=body))
                    self.tally.left += reply.status_code == 200
                    self.tally.rejected["queue_full"] += reply.status_code == 429
                    if reply.status_code != (200 if number <= capacity else 429):
                        self.tally.fault(
                            f"request {number} of an idle server with a capacity of {capacity} got {reply.status_code}"
                        )
        except TimeoutError:
            self.tally.fault(f"{number} requests in sequence are not admitted within {self.timeout:g} seconds")

    async def _outcome(self, behaviour: str, case: ServingCase, rng: np.random.Generator) -> str:
        drafts = bool(rng.random() < 0.3)
        moment, pieces = float(rng.random()), int(rng.integers(2, 6))
        match behaviour:
            case "whole":
                await self._check_whole(case)
            case "streamed":
                await self._streamed(case, drafts)
            case "reads slowly":
                await self._streamed(case, True, slow=True)
            case "sends slowly":
                await self._check_whole(case, pieces=pieces, pause=0.02 * moment)
            case "deadline":
                deadline = 0.01 + moment**2
                cut = await (self._streamed(case, drafts, deadline) if drafts else self._check_whole(case, deadline))
                return "cut by a deadline" if cut else "as expected"
            case "bad" | "hostile":
                bad = self.bad[behaviour]
                return await self._check_rejected(bad[int(rng.integers(len(bad)))])
            case "leaves in its body" | "leaves unanswered":
                return await self._leave_without_reply(self._long(rng), behaviour, 0.1 * moment, pieces)
            case _:
                return await self._leave_stream(self._long(rng), behaviour)
        return "as expected"

    async def _check_whole(
        self, case: ServingCase, deadline: float | None = None, *, pieces: int = 1, pause: float = 0.0
    ) -> bool:
        """Check an answer without streaming. Return True if a deadline cut it."""
        body = case.encode(self.model, lopa=_options(deadline))
        async with self._admitted(self.http, case.path, body, pieces, pause) as reply:
            answer = await _json_of_reply(reply)
        if answer["id"] != reply.headers["x-request-id"]:
            raise WrongAnswerError(f"answer id {answer['id']} in the reply {reply.headers['x-request-id']}")
        return self._check(case, choices_of_reply(case.path, answer), may_be_cut=deadline is not None)

    async def _streamed(
        self, case: ServingCase, drafts: bool, deadline: float | None = None, *, slow: bool = False
    ) -> bool:
        """Check a streamed answer. Return True if a deadline cut it."""
        answers = streamed_reply(case.path, checks_drafts=case.is_plain)
        body = _streamed(case, self.model, drafts, lopa=_options(deadline))
        async with self._admitted(self.slow if slow else self.http, case.path, body) as reply:
            await _check_admitted(reply)
            async for data in events_of_parts(reply.aiter_raw(), pause=_READ_PAUSE if slow else 0.0):
                answers.add(data)
        if not answers.whole or answers.id != reply.headers["x-request-id"]:
            raise WrongAnswerError(
                f"incomplete stream, or stream id {answers.id} in the reply {reply.headers['x-request-id']}"
            )
        return self._check(case, answers.choices(), may_be_cut=deadline is not None)

    def _check(self, case: ServingCase, choices: list[dict[str, Any]], *, may_be_cut: bool) -> bool:
        difference = case.difference(choices, may_be_cut=may_be_cut)
        if difference is not None:
            raise WrongAnswerError(difference)
        self.tally.read(case.path, choices)
        return any(choice[LOPA_FIELD]["stop_reason"] == "time_limit" for choice in choices)

    async def _check_rejected(self, bad: BadRequest) -> str:
        async with self._admitted(self.http, bad.path, bad.body) as reply:
            await reply.aread()
            error = reply.json()["error"]
        if bad.path == MESSAGES:  # its errors name the field in the message, and have no code
            error = {"code": bad.code, "param": error["message"].partition(":")[0], **error}
        found = reply.status_code, error["code"], error["param"]
        if found != (bad.status, bad.code, bad.param):
            raise WrongAnswerError(f"{bad.body[:80]!r}: {found} {error}, not {bad.status} {bad.code} {bad.param}")
        self.tally.rejected[bad.code or "bad_request"] += 1
        return "rejected as expected"

    def _long(self, rng: np.random.Generator) -> ServingCase:
        return self.cases.long[int(rng.integers(len(self.cases.long)))]

    async def _leave_without_reply(self, long: ServingCase, behaviour: str, moment: float, pieces: int) -> str:
        """Leave `moment` seconds after sending the body or a part of it."""
        body = long.encode(self.model)
        content = _in_pieces(body, pieces if behaviour == "leaves in its body" else 1, self.timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(moment):
                await self.http.post(long.path, content=content, headers=_headers(body))
        self.tally.unanswered += 1
        return behaviour

    async def _leave_stream(self, long: ServingCase, behaviour: str) -> str:
        """Disconnect after the head of a streamed answer, or during it."""
        answers = streamed_reply(long.path, checks_drafts=long.is_plain)
        body = _streamed(long, self.model, behaviour == "leaves while it runs")
        async with self._admitted(self.http, long.path, body) as reply:
            await _check_admitted(reply)
            self.tally.left += 1
            if behaviour == "leaves while it runs":
                async for data in events_of_parts(reply.aiter_raw()):
                    answers.add(data)
                    if answers.drafts == _DRAFTS_SEEN:
                        break
        if not long.begins_with(0, answers.first_text()):
            raise WrongAnswerError(f"{answers.first_text()!r} does not begin {long.alone[0].text!r}")
        return behaviour

    @asynccontextmanager
    async def _admitted(
        self, http: httpx2.AsyncClient, path: str, body: bytes, pieces: int = 1, pause: float = 0.0
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request until it is admitted, and yield the reply after its head."""
        while True:
            content = _in_pieces(body, pieces, pause)
            async with http.stream("POST", path, content=content, headers=_headers(body)) as reply:
                if reply.status_code != 429:
                    yield reply
                    return
                await reply.aread()
                error = reply.json()["error"]
                known = error["type"] == "rate_limit_error" if path == MESSAGES else error["code"] == "queue_full"
                if not known or "retry-after" not in reply.headers:
                    raise WrongAnswerError(f"429 {reply.text} {reply.headers}")
                self.tally.rejected["queue_full"] += 1
            await asyncio.sleep(_RETRY_SECONDS)


def _streamed(case: ServingCase, model: str, drafts: bool, **more: Any) -> bytes:
    return case.encode(model, stream=True, stream_options={"include_drafts": drafts}, **more)


def _options(deadline: float | None) -> dict[str, Any]:
    return {} if deadline is None else {"deadline": deadline}


def _headers(body: bytes) -> dict[str, str]:
    return {"content-type": "application/json", "content-length": str(len(body))}


async def _in_pieces(body: bytes, pieces: int, pause: float) -> AsyncIterator[bytes]:
    """Yield the body in `pieces` pieces, with `pause` seconds between them."""
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
