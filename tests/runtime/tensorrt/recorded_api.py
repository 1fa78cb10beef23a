"""A stand-in for the module tensorrt with exactly the recorded interface of the real bindings.

The records are api-10.json, api-11.json and, for TensorRT for RTX, api-rtx-1.json
(tools/vendors/record_tensorrt_api.py). Unrecorded classes, methods, keywords, properties or enum members raise errors,
as does setting a read-only property. Methods return the recorded type; `behaviours` defines what they do.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

MAJORS = (10, 11)
RTX = "rtx-1"
_FOLDER = Path(__file__).parent
_PLAIN: dict[str, Any] = {"bool": True, "int": 0, "float": 0.0, "str": ""}
_DATA_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}
"""Module values whose names differ from the members of DataType."""
_OWN_ATTRIBUTES = {"state", "_constructed"}
_OVERRIDDEN = {"IStreamReaderV2": {"read": 2}, "IStreamWriter": {"write": 1}}
"""Number of arguments of overridden methods whose documented form differs from the record."""

Behaviours = Mapping[str, Callable[..., Any]]
"""Functions by "Class.method" or "Class.property". They get the object and, for a method, its arguments by name.

"Class.property =" gets the object and the new value of the property.
"""


def surface(major: int | str) -> dict[str, Any]:
    """Return the record of `major`, one of MAJORS or RTX."""
    return dict(json.loads((_FOLDER / f"api-{major}.json").read_text()))


_RTX_ONLY = ("IRuntimeConfig", "IRuntimeCache", "create_runtime_config", "set_compute_capability")
"""Names of behaviours that only TensorRT for RTX uses. TensorRT has some of them too."""


def methods_by_name(rules: object, *, rtx: bool) -> dict[str, Callable[..., Any]]:
    """Return the methods Class__method and Class__property__set of `rules` as behaviours."""
    found = {}
    for name in dir(rules):
        owner, between, member = name.partition("__")
        if owner and between and (rtx or not {owner, member} & {*_RTX_ONLY}):
            found[f"{owner}.{member}".replace("__set", " =")] = getattr(rules, name)
    return found


def created(module: ModuleType, name: str) -> Any:
    """Return an object of a class that only methods of the library make."""
    kind = getattr(module, name)
    made = kind.__new__(kind)
    made._constructed = True
    return made


def module_from_surface(recorded: Mapping[str, Any], behaviours: Behaviours) -> ModuleType:
    """Return the module. Its `calls` lists the calls as "Class.method"."""
    module = ModuleType("tensorrt")
    module.__dict__["__version__"] = recorded["version"]
    module.__dict__["calls"] = []
    for name in recorded["classes"]:
        _add_class(module, recorded["classes"], name, behaviours)
    for name in recorded["values"]:
        module.__dict__[name] = getattr(module.__dict__["DataType"], _DATA_TYPES.get(name, name.upper()))
    known = {f"{owner}.{name}" for owner, one in recorded["classes"].items() for name in _names(one)}
    unknown = {name.removesuffix(" =") for name in behaviours} - known
    assert not unknown, f"behaviours without a record: {unknown}"
    return module


def _names(one: Mapping[str, Any]) -> list[str]:
    return [*one.get("methods", ()), *one.get("properties", ())]


class Member:
    """A member of a pybind11 enum. Unlike Python's Enum, its class cannot be subscripted."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number

    def __int__(self) -> int:
        return self.number


class Recorded:
    """Base of the recorded classes."""

    recorded: Mapping[str, Any] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Check that methods of an overriding class can be called like the recorded ones."""
        super().__init_subclass__(**options)
        if "recorded" in cls.__dict__:
            return
        for name, signatures in cls.recorded["methods"].items():
            own = cls.__dict__.get(name)
            if own is not None and name != "__init__":
                expected = {len(_parameters(signature)) for signature in signatures}
                documented = _OVERRIDDEN.get(cls.__mro__[1].__name__, {}).get(name)
                expected = expected if documented is None else {documented}
                assert own.__code__.co_argcount - 1 in expected, (
                    f"{cls.__name__}.{name} takes a wrong number of arguments"
                )

    def __new__(cls, *_arguments: Any, **_keywords: Any) -> Any:
        made = super().__new__(cls)
        made.__dict__.update(state=SimpleNamespace(), _constructed=False)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        ours = "recorded" not in type(self).__dict__
        if name not in _OWN_ATTRIBUTES and not ours and not isinstance(getattr(type(self), name, None), property):
            raise AttributeError(f"{type(self).__name__} has no property {name!r}")
        object.__setattr__(self, name, value)


def _add_class(module: ModuleType, classes: Mapping[str, Mapping[str, Any]], name: str, behaviours: Behaviours) -> None:
    if name in module.__dict__:
        return
    one = classes[name]
    if "members" in one:
        module.__dict__[name] = _enum(name, one["members"])
        return
    for base in one.get("bases", ()):
        _add_class(module, classes, base, behaviours)
    bases = tuple(module.__dict__[base] for base in one.get("bases", ())) or (Recorded,)
    members: dict[str, Any] = {"recorded": {"methods": one.get("methods", {})}}
    for method, signatures in one.get("methods", {}).items():
        members[method] = _method(module, name, method, signatures, behaviours)
    for attribute, type_name in one.get("properties", {}).items():
        members[attribute] = _property(module, name, attribute, type_name, behaviours)
    nested = {key: _enum(key, value) for key, value in one.get("values", {}).items() if isinstance(value, list)}
    for key, value in one.get("values", {}).items():
        members[key] = nested[key] if key in nested else getattr(nested.get(value), key, None)
    if name == "IHostMemory":  # IHostMemory has the buffer protocol, which classes of Python 3.11 cannot define
        bases = (*bases, bytearray)
    module.__dict__[name] = type(name, bases, members)


def _enum(name: str, members: list[str]) -> type:
    made = {member: Member(member, number) for number, member in enumerate(members)}
    return type(name, (), {"__members__": made, **made})


def _method(
    module: ModuleType, owner: str, name: str, signatures: list[str], behaviours: Behaviours
) -> Callable[..., Any]:
    def call(self: Recorded, *arguments: Any, **keywords: Any) -> Any:
        module.__dict__["calls"].append(f"{owner}.{name}")
        for value in (*arguments, *keywords.values()):
            if isinstance(value, Recorded) and not value.__dict__["_constructed"]:
                raise TypeError(f"{type(value).__name__}.__init__() must be called when overriding __init__")
        named, returned = _bind(f"{owner}.{name}", signatures, arguments, keywords)
        if name == "__init__":
            self.__dict__["_constructed"] = True
        does = behaviours.get(f"{owner}.{name}")
        return _default(module, returned) if does is None else does(self, **named)

    return call


def _bind(
    place: str, signatures: list[str], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the arguments by name and the return type. Raises TypeError if no overload matches."""
    for signature in signatures:
        parameters = _parameters(signature)
        names = [parameter.removesuffix("=") for parameter in parameters]
        named = dict(zip(names, arguments, strict=False)) | keywords
        needed = [parameter for parameter in parameters if not parameter.endswith("=")]
        fits = len(arguments) <= len(names) and set(keywords) <= set(names[len(arguments) :])
        if fits and set(needed) <= set(named):
            return named, signature.split(" -> ")[1]
    found = [*(type(argument).__name__ for argument in arguments), *(f"{key}=" for key in keywords)]
    raise TypeError(f"{place}({', '.join(found)}): the real method takes {' or '.join(signatures) or 'nothing'}")


def _parameters(signature: str) -> list[str]:
    return [part for part in signature.split(" -> ")[0].split(", ") if part]


def _property(module: ModuleType, owner: str, name: str, type_name: str, behaviours: Behaviours) -> property:
    kind, _, settable = type_name.partition(" ")

    def get(self: Recorded) -> Any:
        does = behaviours.get(f"{owner}.{name}")
        if does is not None:
            return does(self)
        return self.__dict__.get(name, kind != "bool" and _default(module, kind))  # booleans are False until set

    def put(self: Recorded, value: Any) -> None:
        module.__dict__["calls"].append(f"{owner}.{name} =")
        self.__dict__[name] = value
        does = behaviours.get(f"{owner}.{name} =")
        if does is not None:
            does(self, value)

    return property(get, put if settable else None)


def _default(module: ModuleType, type_name: str) -> Any:
    """Return a value of the type. Objects returned by methods count as constructed."""
    if type_name in _PLAIN:
        return _PLAIN[type_name]
    if type_name.startswith("list"):
        return []
    kind = module.__dict__.get(type_name) or module.__dict__.get(type_name.removeprefix("I"))
    if kind is None:
        return None
    if hasattr(kind, "__members__"):
        return next(iter(kind.__members__.values()))
    made = kind.__new__(kind)
    made.__dict__["_constructed"] = True
    return made
