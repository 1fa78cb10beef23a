"""Committed rows that another device of the same process copies from where they are, without the host.

They lie in memory of their own, since the device that computed them goes on to its next forward meanwhile.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lopa.runtime.accelerator.memory import BufferSet, DeviceMemory, RowPlace
from lopa.runtime.contract import CacheRows
from lopa.runtime.sessions.prefix_cache import CacheShape


class RowLoan:
    """The memory of lent rows: lender and borrowers are different threads."""

    def __init__(self, buffers: BufferSet) -> None:
        self._buffers = buffers
        self._changed = threading.Condition()
        self._users = 0
        self._ended = False

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keeps the memory while a borrower reads it. Raises RuntimeError when the lender has closed."""
        with self._changed:
            if self._ended:
                raise RuntimeError("rows of a device that was closed; expected them to be read before")
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Free the memory as soon as no borrower reads it; on the lender's thread."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: self._users == 0)
        self._buffers.free()


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceRows(CacheRows):
    """Rows in device memory. `layers` is empty: only a session on a device that reaches `memory` can append them."""

    memory: DeviceMemory
    place: RowPlace
    shape: CacheShape
    rows: int
    loan: RowLoan

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.rows


class Lender:
    """The rows that a device lends, until nobody holds them any more."""

    def __init__(self) -> None:
        self._lent: list[tuple[weakref.ref[DeviceRows], RowLoan]] = []

    def lend(self, rows: DeviceRows) -> DeviceRows:
        """Note `rows`."""
        self._lent.append((weakref.ref(rows), rows.loan))
        return rows

    def end_unused(self) -> None:
        """Free the memory of rows that were forgotten."""
        unused = [loan for rows, loan in self._lent if rows() is None]
        self._lent = [(rows, loan) for rows, loan in self._lent if loan not in unused]
        for loan in unused:
            loan.end()

    def end_all(self) -> None:
        """Free all of it; waits for those who read it now."""
        lent, self._lent = self._lent, []
        for _, loan in lent:
            loan.end()
