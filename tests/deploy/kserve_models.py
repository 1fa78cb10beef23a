"""Model definitions from KServe's own package: the fields of every record and their types. The package is not imported.

Its models are classes with two dictionaries, which map attributes to types and to JSON names. Types of Kubernetes
itself (V1Probe and others) are not described, so their values are not checked.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PLAIN = {"str": str, "int": int, "bool": bool, "float": float}


class KserveModels:
    """Model definitions in the folder kserve/models of an installed package."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.stem.replace("_", ""): path for path in folder.glob("*.py")}

    def faults(self, value: object, kind: str, where: str) -> Iterator[str]:
        """Yield the errors of `value` as a type of the package, such as V1beta1InferenceService."""
        if inner := re.fullmatch(r"list\[(.+)\]", kind):
            yield from self._faults_of_list(value, inner[1], where)
        elif kind in _PLAIN:
            if type(value) is not _PLAIN[kind]:
                yield f"{where} is {value!r}, no {kind}"
        elif path := self._files.get(kind.lower()):
            yield from self._faults_of_record(value, path, where)

    def _faults_of_list(self, value: object, kind: str, where: str) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for number, each in enumerate(value):
            yield from self.faults(each, kind, f"{where}[{number}]")

    def _faults_of_record(self, value: object, path: Path, where: str) -> Iterator[str]:
        types = _fields_of_model(path)
        if not types:
            return  # quantities are texts or numbers
        if not isinstance(value, dict):
            yield f"{where} is {value!r}, no object"
            return
        for name, inner in value.items():
            if name not in types:
                yield f"{where}.{name} is no field"
            else:
                yield from self.faults(inner, types[name], f"{where}.{name}")


def _fields_of_model(path: Path) -> dict[str, str]:
    """Return the types of the fields by their JSON names."""
    found: dict[str, Any] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    names = found.get("attribute_map", {})
    return {names[attribute]: kind for attribute, kind in found.get("openapi_types", {}).items()}
