"""Checked calls of pyACL (CANN's module `acl`), and whether it is installed."""

import importlib
import importlib.util
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Any

from lopa.runtime.accelerator.device_memory import run_all
from lopa.runtime.ascend.acl_contract import calls_by_name, code_of_number
from lopa.runtime.device_families import DeviceStatus
from lopa.runtime.errors import EngineFailedError, MissingBackendError

REPEATED_INIT = 100002
"""Value of ACL_ERROR_REPEAT_INITIALIZE."""


class AclError(EngineFailedError):
    """A call of pyACL failed. `code` is its return value."""

    def __init__(self, call: str, code: object) -> None:
        known = code_of_number(code) if isinstance(code, int) else None
        super().__init__(
            f"acl.{call} returned {code}" + ("" if known is None else f" ({known.name}): {known.meaning}"),
            expected="0",
            remedy="see CANN's documentation of aclError, and the log in $HOME/ascend/log/debug/plog"
            if known is None
            else known.remedy,
        )
        self.code = code


class AclCalls:
    """Functions of the module, called by their names in acl_contract.json."""

    def __init__(self, module: Any) -> None:
        self._functions = {name: attrgetter(name)(module) for name in calls_by_name()}

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Call acl.`name`, and return its value, or None if it has none.

        Raises AclError for any code except 0. A call that returns only a value has failed if the value is 0 or empty.
        """
        result = self._functions[name](*arguments)
        returns = calls_by_name()[name].returns
        if returns == "value":
            if not result:
                raise AclError(name, result)
            return result
        value, code = result if returns == "value, ret" else (None, result)
        if code != 0:
            raise AclError(name, code)
        return value

    def all(self, steps: Iterable[tuple[Any, ...]]) -> None:
        """Make all calls, each a name with arguments, even if some fail. Raises the first failure at the end."""
        run_all(partial(self, *step) for step in steps)


def load_acl() -> AclCalls:
    """Import pyACL. Raises MissingBackendError if it is missing or an incompatible module."""
    try:
        return AclCalls(importlib.import_module("acl"))
    except (ImportError, AttributeError) as error:
        raise MissingBackendError(
            f"cannot load pyACL: {error}",
            expected="the Python module acl of a CANN toolkit or NNRT (not available on PyPI)",
            remedy="install CANN for this machine's NPU, then run: source .../ascend-toolkit/set_env.sh",
        ) from error


def find_devices(family: str) -> list[DeviceStatus]:
    """Return one status line for all NPUs."""
    is_here = importlib.util.find_spec("acl") is not None
    missing = "needs pyACL, which comes with CANN, and an NPU (docs/how-to/engines.md)"
    state = "pyACL is installed" if is_here else missing
    return [DeviceStatus(f"{family}:N", state, is_here)]
