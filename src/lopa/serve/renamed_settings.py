"""Former names of settings in Ray's args and Triton's parameters, accepted for one minor version.

Values are not checked here.
"""

import logging
from collections.abc import Mapping
from typing import Any

RENAMED_SETTINGS: Mapping[str, str] = {"slots": "max_num_seqs"}
"""Current name of each former one."""
_LOG = logging.getLogger(__name__)


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `settings` under current names, with a warning in the log for each former one.

    A current name takes precedence.
    """
    current = {name: value for name, value in settings.items() if name not in RENAMED_SETTINGS}
    for former, name in RENAMED_SETTINGS.items():
        if former in settings:
            _LOG.warning("%s is deprecated; use %s", former, name)
            current.setdefault(name, settings[former])
    return current
