"""Record the API of TensorRT's Python bindings: classes, methods with keywords, properties, enum members.

    pip install --no-deps --target BINDINGS tensorrt-cu13-bindings==11.4.0.106
    python -m tools.vendors.record_tensorrt_api BINDINGS -o tests/runtime/tensorrt/api-11.json

The real bindings are imported over stand-in libraries (tests/runtime/tensorrt/stand_in_libraries.c, compiled here), so
neither TensorRT nor a GPU is needed. The bindings of TensorRT for RTX (tensorrt-rtx-cu13-bindings, with
tensorrt-rtx-cu13-libs in the same folder) use their own libraries, which load without a GPU. A process can record only
one version.
"""

import argparse
import ctypes
import importlib
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

STAND_IN = Path(__file__).parents[2] / "tests" / "runtime" / "tensorrt" / "stand_in_libraries.c"
_LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
_ENTERPRISE, _RTX = "tensorrt_bindings", "tensorrt_rtx_bindings"
_SIGNATURE = re.compile(r"^(?:\d+\. )?(?P<name>\w+)\((?P<parameters>.*)\) -> (?P<returns>.+)$")
_MODULE_PATH = re.compile(r"\b\w+(?:\.\w+)*\.(?=\w)")


def main() -> None:
    """Record the bindings in the given folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bindings", type=Path, help="folder of the bindings")
    parser.add_argument("-o", "--output", type=Path, help="output file  [default: standard output]")
    arguments = parser.parse_args()
    if (arguments.bindings / _RTX).exists():
        surface = surface_of_module(
            bindings_in_folder(arguments.bindings, _RTX)
        )  # TensorRT for RTX has no plugins in Python
    else:
        trt = bindings_over_stand_ins(arguments.bindings)
        surface = surface_of_module(trt) | {"plugin": surface_of_plugin_module(trt)}
    text = json_from_surface(surface)
    if arguments.output is None:
        print(text, end="")
    else:
        arguments.output.write_text(text)


def bindings_over_stand_ins(folder: Path) -> ModuleType:
    """Import tensorrt_bindings from `folder` with stand-ins as its libraries. This needs a C compiler named cc."""
    major = next(folder.glob("tensorrt_*bindings-*.dist-info")).name.split("-")[1].split(".")[0]
    with tempfile.TemporaryDirectory() as build:
        for library in _LIBRARIES:
            name = f"lib{library}.so.{major}"
            path = Path(build, name)
            subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", path, STAND_IN], check=True)
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # the loader uses libraries that are already loaded
        return bindings_in_folder(folder, _ENTERPRISE)


def bindings_in_folder(folder: Path, name: str) -> ModuleType:
    """Import the module `name` that pip installed to `folder`."""
    sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def surface_of_module(trt: ModuleType) -> dict[str, Any]:
    """Return the public API of `trt` in a form that can be compared between versions."""
    classes = {name: value for name, value in sorted(vars(trt).items()) if inspect.isclass(value) and _public(name)}
    functions = {
        name: list(_signatures(name, value))
        for name, value in sorted(vars(trt).items())
        if inspect.isroutine(value) and _public(name)
    }
    return {
        "version": trt.__version__,
        "classes": {name: _class_surface(value) for name, value in classes.items()},
        "functions": functions,
        "values": [name for name, value in sorted(vars(trt).items()) if type(value).__name__ in classes],
    }


def surface_of_plugin_module(trt: ModuleType) -> dict[str, Any]:
    """Return the API of tensorrt.plugin, which is written in Python: parameters of functions, public names of
    classes."""
    sys.modules["tensorrt"] = trt  # the submodule imports its package by this name
    plugin = importlib.import_module(f"{trt.__name__}.plugin")
    own = [(name, value) for name, value in sorted(vars(plugin).items()) if _public(name)]
    return {
        "functions": {name: _python_parameters(value) for name, value in own if inspect.isfunction(value)},
        "classes": {
            name: {
                "parameters": _python_parameters(value.__init__)[1:],
                "names": sorted(filter(_public, vars(value))),
            }
            for name, value in own
            if inspect.isclass(value) and value.__module__.startswith(plugin.__name__)
        },
    }


def json_from_surface(surface: dict[str, Any]) -> str:
    """Return JSON with one line per class, so that differences between versions are readable."""
    classes = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in surface["classes"].items()
    )
    others = "".join(
        f" {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))},\n"
        for name, value in surface.items()
        if name != "classes"
    )
    return f'{{\n{others} "classes": {{\n{classes}\n }}\n}}\n'


def _class_surface(owner: type) -> dict[str, Any]:
    """Return methods with the signatures of their overloads, properties with types and setters, and values.

    Values are attributes of the class itself, as their types or the members of an enum.
    """
    bases = [base.__name__ for base in owner.__bases__ if base.__name__ not in ("object", "pybind11_object")]
    members = _members(owner)
    methods, properties, values = {}, {}, {}
    for name, value in sorted(vars(owner).items()):
        if isinstance(value, property):
            properties[name] = _return_type(value.fget) + (" settable" if value.fset else "")
        elif (name == "__init__" or _public(name)) and inspect.isroutine(value) and not members:
            methods[name] = list(_signatures(name, getattr(owner, name)))
        elif _public(name) and not members:
            values[name] = _members(value) if inspect.isclass(value) else type(value).__name__
    parts = {"bases": bases, "members": members, "methods": methods, "properties": properties, "values": values}
    return {name: part for name, part in parts.items() if part and not (members and name != "members")}


def _python_parameters(function: Any) -> list[str]:
    """Return the parameter names. Names of parameters with a default end in "="."""
    parameters = inspect.signature(function).parameters.values()
    return [f"{each.name}{'' if each.default is inspect.Parameter.empty else '='}" for each in parameters]


def _members(owner: Any) -> list[str]:
    return list(getattr(owner, "__members__", ()))


def _signatures(name: str, function: Any) -> Iterator[str]:
    """Yield the parameters without self and the return type of every overload. Defaults are marked by "=".

    Yield nothing for a function written in Python, whose docstring has no such lines.
    """
    lines = (function.__doc__ or "").splitlines()
    for found in filter(None, (_SIGNATURE.match(line.strip()) for line in lines)):
        if found["name"] == name:
            parameters = [part for part in _split(found["parameters"]) if part.split(":")[0] != "self"]
            names = [part.split(":")[0].strip() + ("=" if "=" in part else "") for part in parameters]
            yield f"{', '.join(names)} -> {_type_name(found['returns'])}"


def _return_type(getter: Any) -> str:
    found = re.search(r"-> (.+)$", ((getter and getter.__doc__) or "").strip().split("\n")[0])
    return _type_name(found[1]) if found else "object"


def _type_name(text: str) -> str:
    """Return a type name without modules and namespaces."""
    return _MODULE_PATH.sub("", re.sub(r"\w+::", "", text)).replace("List[", "list[").replace("Tuple[", "tuple[")


def _split(parameters: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in parameters:
        depth += (character in "[<(") - (character in "]>)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _public(name: str) -> bool:
    return not name.startswith("_")


if __name__ == "__main__":
    main()
