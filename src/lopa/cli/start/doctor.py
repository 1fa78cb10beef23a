"""lopa-export doctor: what this install can export, build and run, what it lacks, and which device is fastest."""

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from lopa.runtime.bundle import Bundle
from lopa.runtime.device_families import FAMILIES, DeviceStatus
from lopa.runtime.install_hint import Ability, installed_version, pip_install
from lopa.runtime.openvino.library import version_numbers

_BESIDE_DEVICES = (
    Ability(
        "export",
        "export and verify",
        ("torch", "transformers", "safetensors", "onnx", "onnx-ir", "onnxscript"),
        partial(pip_install, "export"),
    ),
    Ability(
        "polygraphy",
        "save forwards for Polygraphy (verify --save-cases)",
        ("polygraphy", "onnx-graphsurgeon"),
        partial(pip_install, "polygraphy"),
    ),
    Ability(
        "plugins", "compile our kernels (docs/how-to/engines.md)", ("torch", "triton"), partial(pip_install, "plugins")
    ),
    Ability(
        "server",
        "serve over HTTP",
        ("starlette", "uvicorn", "httptools", "prometheus-client", "llguidance"),
        partial(pip_install, "serve"),
    ),
    Ability(
        "ray",
        "serve replicas on Ray (docs/how-to/deploy.md)",
        ("ray", "starlette", "prometheus-client"),
        partial(pip_install, "ray"),
    ),
    Ability(
        "grammar",
        "answer by a schema, a regex or a grammar (docs/how-to/structured-output.md)",
        ("llguidance",),
        partial(pip_install, "grammar"),
    ),
    Ability("plot", "plot measurements", ("matplotlib",), partial(pip_install, "plot")),
    Ability("simulate", "simulate replicas (docs/how-to/measure.md)", ("simpy",), partial(pip_install, "simulate")),
    Ability("lm-eval", "evaluate with lm-eval (docs/how-to/measure.md)", ("lm_eval",), partial(pip_install, "eval")),
    Ability("tests", "run the tests", ("pytest", "hypothesis", "mypy", "ruff"), partial(pip_install, "test")),
)
"""Abilities that are not about devices."""


@click.command(name="doctor")
@click.argument("bundle", required=False, type=click.Path(path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Also list what is not installed, and how to install it.")
def command(bundle: Path | None, show_all: bool) -> None:
    """Say what this install can export, build and run.

    With BUNDLE also on which device it is the fastest here: some forwards on each that opens are timed.
    """
    opened = None if bundle is None else Bundle.open(bundle)
    found = [(ability, _parts(ability)) for ability in abilities()]
    complete = [ability for ability, parts in found if not _missing(ability, parts)]
    _say("machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    _say("python", platform.python_version())
    _say("installed", ", ".join(ability.use for ability in complete) or "not even the runtime")
    hidden = 0
    for ability, parts in found:
        missing = _missing(ability, parts)
        is_outdated = any(version is not None and _is_too_old(version, ability) for version in parts.values())
        if missing and not (show_all or ability is FAMILIES["cpu"].ability or is_outdated):
            hidden += 1
            continue
        there = ", ".join(part for part in parts.values() if part is not None)
        _say("missing" if missing else "ok", f"{ability.name}: {there or 'nothing of it'}")
        if missing:
            _say("", f"needs {', '.join(missing)}: {ability.remedy()}")
    devices = list(_devices())
    for device in devices:
        if device.is_here or show_all:
            _say("device", f"{device.name}: {device.state}")
        else:
            hidden += 1
    _say_fastest(opened, None if show_all else [device.name for device in devices if device.is_here])
    if hidden:
        _say("more", f"{hidden} abilities and devices are not installed here: lopa-export doctor --all lists them")


def abilities() -> list[Ability]:
    """Return what an install can be for: devices, then everything else."""
    return [*dict.fromkeys(family.ability for family in FAMILIES.values()), *_BESIDE_DEVICES]


def _say(label: str, text: str) -> None:
    click.echo(f"{label:11} {text}")


def _say_fastest(bundle: Bundle | None, here: Sequence[str] | None) -> None:
    """Time the devices that are `here`, None: every device, of which those that do not open say why."""
    if bundle is None:
        _say("fastest", "lopa-export doctor BUNDLE times some forwards on each device")
        return
    from lopa.cli.start.fastest_device import lines_of_fastest  # which needs what a bundle is opened with

    for line in lines_of_fastest(bundle, timed_devices(here), tell_all=here is None):
        _say("fastest", line)


def timed_devices(names: Sequence[str] | None) -> list[str]:
    """Return the devices that can be timed, of those that `names` of this command's lines stand for; None: all."""
    prefixes = ("",) if names is None else tuple(name.removesuffix("N") for name in names)
    return [device for family in FAMILIES.values() for device in family.timed if device.startswith(prefixes)]


def _parts(ability: Ability) -> dict[str, str | None]:
    """Return the installed versions of an ability's parts by name, None for a missing part."""
    found = {name: _version(name) for name in ability.distributions}
    return found | {name: _program(name) for name in ability.programs}


def _missing(ability: Ability, parts: Mapping[str, str | None]) -> list[str]:
    return [name for name, found in parts.items() if found is None or _is_too_old(found, ability)]


def _version(distributions: str) -> str | None:
    """Name and version of the one of "a or b" that Python imports, None when none is installed."""
    names = distributions.split(" or ")
    if "onnxruntime" in names:
        return _imported_onnxruntime()
    for name in names:
        if (version := installed_version(name)) is not None:
            return f"{name} {version}"
    return None


def _imported_onnxruntime() -> str | None:
    """Name and version of the package that `import onnxruntime` finds, as the package itself says them; None for none.

    Several distributions bring a module of that name. Which one is imported depends on sys.path and on which was
    installed last. Metadata of the others stays.
    """
    try:
        from onnxruntime.capi.build_and_package_info import __version__, package_name
    except ImportError:
        return None
    return f"{package_name} {__version__}"


def _is_too_old(found: str, ability: Ability) -> bool:
    """Whether `found`, name and version of a distribution or the place of a program, is older than `ability` needs."""
    return version_numbers(found.rpartition(" ")[2]) < ability.min_version


def _program(name: str) -> str | None:
    """Where it is: on PATH, or beside this interpreter, where pip puts programs."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _devices() -> Iterator[DeviceStatus]:
    """Yield the devices of this process's machine by family; a job of several processes is none."""
    for family in FAMILIES.values():
        if family.spans_processes:
            continue
        if family.status_module is not None:
            find: Callable[[str], list[DeviceStatus]] = importlib.import_module(family.status_module).find_devices
            yield from find(family.name)
        elif missing := _missing(family.ability, _parts(family.ability)):
            state = f"needs {', '.join(missing)}: {family.ability.remedy()}"
            yield DeviceStatus(family.label, state, is_here=False)
        else:
            yield DeviceStatus(family.label, f"ready ({family.description})")
