"""Serving ranks of an MPI job. They wait for messages, compute, and keep the same prefixes as rank 0."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lopa.runtime.bundle import Bundle
from lopa.runtime.mpi.mpi_link import MpiLink, rank_of_job, wait
from lopa.runtime.mpi.mpi_messages import (
    FIRST_CAPACITY,
    Capacity,
    Commit,
    ForwardMessage,
    Free,
    Message,
    Read,
    Release,
    Shorten,
    Stop,
    bytes_from_rows,
    bytes_from_statistics,
    hello_from_manifest,
    message_from_bytes,
    rows_from_bytes,
    rows_size,
)
from lopa.runtime.sessions.prefix_cache import CacheShape, cache_shape_from_manifest
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import TypedSession


def serve(path: Path | str, device: str, *, threads: int | None = None) -> None:
    """Open the bundle at `path` and serve rank 0 until it closes its session on `device` ("mpi", "mpi:cuda").

    An error ends the job.
    """
    with rank_of_job():
        link = MpiLink(device)
        bundle = Bundle.open(path)
        session = TypedSession(open_session(bundle, link.own_device, threads=link.own_threads(threads)))
        wait(link.send(hello_from_manifest(bundle.manifest), 0))
        shape = cache_shape_from_manifest(bundle.manifest)
        tickets: dict[int, Ticket] = {}
        for message in _messages(link):
            _handle(message, link, session, shape, tickets)
        session.close()


def _messages(link: MpiLink) -> Iterator[Message]:
    """Yield the messages of rank 0 until `Stop`."""
    buffer = np.empty(FIRST_CAPACITY, np.uint8)
    while True:
        wait(link.receive(buffer, 0))
        match message_from_bytes(buffer):
            case Stop():
                return
            case Capacity(size):
                buffer = np.empty(size, np.uint8)
            case message:
                yield message


def _handle(message: Message, link: MpiLink, session: Session, shape: CacheShape, tickets: dict[int, Ticket]) -> None:
    """Do what a message requests. `tickets` are this rank's unreleased ones, by the numbers of rank 0's."""
    match message:
        case ForwardMessage(number, batch):
            tickets[number] = session.start(batch)
            wait(link.send(bytes_from_statistics(session.wait(tickets[number])), 0))
        case Commit(number, request, source, branch, count, travels=True) if source == link.rank:
            rows = bytes_from_rows(session.read_rows(tickets[number], request, branch, count))
            session.commit(tickets[number], request, branch, count)
            wait(link.broadcast(rows, source))
        case Commit(_, request, source, _, count, travels=True):
            memory = np.empty(rows_size(shape, count), np.uint8)
            wait(link.broadcast(memory, source))
            session.append_rows(request, rows_from_bytes(memory, shape, count))
        case Commit(number, request, _, _, count):
            session.commit(tickets[number], request, 0, count)
        case Read(number, request, branch, count):
            rows = bytes_from_rows(session.read_rows(tickets[number], request, branch, count))
            wait(link.send(rows, 0))
        case Shorten(request, count):
            session.shorten(request, count)
        case Release(number):
            if number in tickets:
                session.release(tickets.pop(number))
        case Free(request):
            session.free(request)
