"""Tickets of forwards, and what a session knows about the forwards it has not released."""

import itertools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from lopa.runtime.contract.packed_batch import PackedBatch, check_packed

T = TypeVar("T")

_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Ticket:
    """One forward of one session, from `Session.start` to `Session.release`. A ticket equals only itself."""

    batch: PackedBatch
    number: int = field(default_factory=partial(next, _numbers))
    """Number in errors, unique in this process."""

    def __str__(self) -> str:
        return f"ticket {self.number} of requests {list(self.batch.requests)}"


@dataclass(eq=False)
class _Computed(Generic[T]):
    rows: T
    requests: set[int]
    """Requests whose rows can be used: all of the forward, without those that were freed."""


class Tickets(Generic[T]):
    """The unreleased tickets of a session, with the new rows of computed forwards in a form `T` of the session's own.

    A ticket that nobody refers to counts as released.
    """

    def __init__(self) -> None:
        self._started: weakref.WeakSet[Ticket] = weakref.WeakSet()
        self._computed: weakref.WeakKeyDictionary[Ticket, _Computed[T]] = weakref.WeakKeyDictionary()

    def __contains__(self, ticket: Ticket) -> bool:
        """Return True if the ticket's forward was computed and its rows are kept."""
        return ticket in self._computed

    def __iter__(self) -> Iterator[T]:
        """Yield the rows of every computed forward."""
        return (each.rows for each in list(self._computed.values()))

    def start(self, batch: PackedBatch) -> Ticket:
        """Return a new ticket.

        Raises ValueError as check_packed, and RuntimeError if a forward in flight has a request of `batch`.
        """
        check_packed(batch)
        for request in batch.requests if self._started else ():
            self.check_idle(request)
        ticket = Ticket(batch)
        self._started.add(ticket)
        return ticket

    def take(self, ticket: Ticket) -> PackedBatch:
        """Return the batch of a started forward, which is computed now. The ticket counts as released until `keep`.

        Raises RuntimeError unless the ticket was started and not waited for.
        """
        if ticket not in self._started:
            state = "waited for before" if ticket in self._computed else "released or of another session"
            raise RuntimeError(f"wait received {ticket}, {state}; expected a started ticket, which is waited for once")
        self._started.remove(ticket)
        return ticket.batch

    def keep(self, ticket: Ticket, rows: T) -> None:
        """Keep the new rows of a forward from `take`, or replace them."""
        known = self._computed.get(ticket)
        self._computed[ticket] = _Computed(rows, set(ticket.batch.requests) if known is None else known.requests)

    def rows(self, ticket: Ticket) -> T:
        """Return the rows of a computed forward. Raises RuntimeError if there are none."""
        if ticket not in self._computed:
            state = "not waited for" if ticket in self._started else "released, failed or of another session"
            raise RuntimeError(f"rows requested of {ticket}, {state}; expected a ticket after wait and before release")
        return self._computed[ticket].rows

    def window(self, ticket: Ticket, request: int, branch: int, count: int) -> tuple[T, int]:
        """Return the rows of a computed forward, and the index of `request` in it.

        Raises RuntimeError if the rows cannot be used, and ValueError for an invalid branch or count.
        """
        rows, batch = self.rows(ticket), ticket.batch
        if request not in self._computed[ticket].requests:
            why = "was freed after that forward" if request in batch.requests else "is not part of it"
            raise RuntimeError(
                f"rows of request {request} requested of {ticket}; the request {why}, run a forward with it"
            )
        slot = batch.requests.index(request)
        windows = int(batch.windows[slot])
        if not 0 <= branch < windows:
            raise ValueError(f"received branch {branch}, expected one from 0 to {windows - 1}")
        width = int(batch.lengths[window_of_branch(batch, slot, branch)])
        if not 0 <= count <= width:
            raise ValueError(f"received count {count}, expected one from 0 to {width}, the window rows")
        return rows, slot

    def check_idle(self, request: int) -> None:
        """Raise RuntimeError if a started forward that was not waited for has the request."""
        for ticket in self._started:
            if request in ticket.batch.requests:
                raise RuntimeError(
                    f"request {request} is in flight with {ticket}; wait for that ticket before its cache changes or "
                    "another forward starts with it"
                )

    def free(self, request: int) -> None:
        """Make the rows of the request unusable in every forward. Raises as check_idle."""
        self.check_idle(request)
        for each in self._computed.values():
            each.requests.discard(request)

    def release(self, ticket: Ticket) -> None:
        """Forget the ticket. One that is unknown is ignored."""
        self._started.discard(ticket)
        self._computed.pop(ticket, None)

    def clear(self) -> None:
        """Forget all tickets."""
        self._started.clear()
        self._computed.clear()


def window_of_branch(batch: PackedBatch, slot: int, branch: int) -> int:
    """Return the index of a request's window number `branch` among all windows. `slot` is the request's index."""
    return int(batch.windows[:slot].sum()) + branch
