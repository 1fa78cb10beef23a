"""Several sessions that do the same, to compare their results in every forward of a decode."""

from collections.abc import Sequence
from typing import Any

from lopa.runtime.contract import Statistics
from lopa.runtime.sessions.tickets import Ticket


class Lockstep:
    """Sessions that do everything in turn. It returns the results of the first one."""

    def __init__(self, sessions: Sequence[Any]) -> None:
        self.sessions = sessions
        self._tickets: dict[Any, list[Any]] = {}
        self.seen: list[list[Statistics]] = []
        """Statistics of each forward: one for each session."""

    def __getattr__(self, name: str) -> Any:
        if not callable(getattr(self.sessions[0], name)):
            return getattr(self.sessions[0], name)

        def call(*arguments: Any) -> Any:
            found = [
                getattr(session, name)(*(self._of(number, each) for each in arguments))
                for number, session in enumerate(self.sessions)
            ]
            if isinstance(found[0], Ticket):
                self._tickets[found[0]] = found
            if isinstance(found[0], Statistics):
                self.seen.append(found)
            return found[0]

        return call

    def _of(self, number: int, argument: Any) -> Any:
        return self._tickets[argument][number] if isinstance(argument, Ticket) else argument
