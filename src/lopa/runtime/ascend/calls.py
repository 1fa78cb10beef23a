"""Calls of pyACL (the module `acl` of CANN) with their codes checked. Knows no order of calls and no device."""

import importlib
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Any

from lopa.runtime.accelerator.memory import take_all
from lopa.runtime.ascend.contract import calls_by_name, code_of_number
from lopa.runtime.errors import EngineFailedError, MissingBackendError

REPEATED_INIT = 100002
"""ACL_ERROR_REPEAT_INITIALIZE"""


class AclError(EngineFailedError):
    """A call of pyACL failed. `code` is what it returned."""

    def __init__(self, call: str, code: object) -> None:
        known = code_of_number(code) if isinstance(code, int) else None
        super().__init__(
            f"acl.{call} returned {code}" + ("" if known is None else f" ({known.name}): {known.meaning}"),
            expected="0",
            remedy="look the code up in CANN's documentation (aclError); the log is in $HOME/ascend/log/debug/plog"
            if known is None
            else known.mend,
        )
        self.code = code


class AclCalls:
    """The module, by the names of acl_contract.json."""

    def __init__(self, module: Any) -> None:
        self._functions = {name: attrgetter(name)(module) for name in calls_by_name()}

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Call acl.`name`; its value, or None where it has none. Raises AclError for any code but 0.

        A call that gives a value alone has failed when that is 0 or nothing.
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
        """Make every call, a name and its arguments each, whatever fails; raise the first failure at the end."""
        take_all(partial(self, *step) for step in steps)


def calls_of_installed_acl() -> AclCalls:
    """Import pyACL. Raises MissingBackendError when it is not here, or is another than it should be."""
    try:
        return AclCalls(importlib.import_module("acl"))
    except (ImportError, AttributeError) as error:
        raise MissingBackendError(
            f"pyACL cannot be used: {error}",
            expected="the Python module acl of a CANN toolkit (or NNRT), which is on no package index",
            remedy="install CANN for this machine's NPU, then: source .../ascend-toolkit/set_env.sh",
        ) from error
