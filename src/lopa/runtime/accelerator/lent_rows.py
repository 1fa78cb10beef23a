"""Committed rows that another device of the same process copies directly, without the host.

They are in separate memory, because the lender runs its next forward during the copy.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lopa.runtime.accelerator.device_memory import BufferSet, DeviceMemory, RowPlace
from lopa.runtime.contract import CacheRows
from lopa.runtime.sessions.prefix_cache import CacheShape


class RowLoan:
    """Memory of lent rows, shared between the threads of lender and borrowers."""

    def __init__(self, buffers: BufferSet) -> None:
        self._buffers = buffers
        self._changed = threading.Condition()
        self._users = 0
        self._ended = False

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep the memory while a borrower reads it. Raises RuntimeError if the lender has closed."""
        with self._changed:
            if self._ended:
                raise RuntimeError("the device that lent these rows was closed; read them before closing it")
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Free the memory once no borrower reads it. Call it on the lender's thread."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: self._users == 0)
        self._buffers.free()


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceRows(CacheRows):
    """Rows in device memory. `layers` is empty, so only a session whose device can access `memory` can append them."""

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
    """Tracks the rows that a device has lent until they are released."""

    def __init__(self) -> None:
        self._lent: list[tuple[weakref.ref[DeviceRows], RowLoan]] = []

    def lend(self, rows: DeviceRows) -> DeviceRows:
        """Track `rows`, and return them."""
        self._lent.append((weakref.ref(rows), rows.loan))
        return rows

    def end_unused(self) -> None:
        """Free the memory of rows that are no longer referenced."""
        unused = [loan for rows, loan in self._lent if rows() is None]
        self._lent = [(rows, loan) for rows, loan in self._lent if loan not in unused]
        for loan in unused:
            loan.end()

    def end_all(self) -> None:
        """Free all lent memory, after waiting for its readers."""
        lent, self._lent = self._lent, []
        for _, loan in lent:
            loan.end()
