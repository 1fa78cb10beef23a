"""Environment variables that Kubernetes sets in every container for each Service of the namespace.

A Service named lopa-serve sets LOPA_SERVE_SERVICE_HOST, LOPA_SERVE_PORT=tcp://10.0.0.1:8000 and more, which are no
settings of a program.
"""

import re
from collections.abc import Mapping

_HOST = "_SERVICE_HOST"
_SUFFIX = re.compile(r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?")
_URL = re.compile(r"(tcp|udp|sctp)://")


def service_links(variables: Mapping[str, str]) -> set[str]:
    """Return the names of the variables that Kubernetes set. NAME_PORT counts only if it is a URL, since a container's
    own variables replace Kubernetes's."""
    prefixes = {name.removesuffix(_HOST) for name in variables if name.endswith(_HOST)}
    found = {
        name
        for prefix in prefixes
        for name in variables
        if name.startswith(prefix) and _SUFFIX.fullmatch(name, len(prefix))
    }
    return {name for name in found if not _is_own_port(name, prefixes) or _URL.match(variables[name])}


def _is_own_port(name: str, prefixes: set[str]) -> bool:
    return name.removesuffix("_PORT") in prefixes and name.endswith("_PORT")
