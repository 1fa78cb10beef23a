"""lopa-export doctor: shows what this install can do, what it lacks, and which device is fastest."""

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import click

import lopa
from lopa.cli.options.devices import software_gpu_option
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.runtime.bundle import Bundle
from lopa.runtime.cpu_kernels.kernel_library import kernel_status
from lopa.runtime.cuda_kernels.cuda_library import library_status
from lopa.runtime.cuda_kernels.kernel_archive import kernels_status
from lopa.runtime.device_families import FAMILIES, DeviceStatus
from lopa.runtime.install_hint import Ability, installed_version, pip_install
from lopa.runtime.openvino.openvino_library import version_numbers

_OTHER_ABILITIES = tuple(
    Ability(extra, name, tuple(packages.split()), partial(pip_install, extra))
    for extra, name, packages in (
        ("export", "export and verify", "torch transformers peft safetensors onnx onnx-ir onnxscript"),
        ("plugins", "compile this project's kernels (docs/how-to/engines.md)", "torch triton"),
        ("serve", "serve over HTTP", "starlette uvicorn httptools prometheus-client llguidance"),
        (
            "otel",
            "export traces of the server (docs/how-to/serve.md)",
            "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
        ),
        ("ray", "serve replicas on Ray (docs/how-to/deploy.md)", "ray starlette prometheus-client"),
        ("grammar", "structured output (docs/how-to/structured-output.md)", "llguidance"),
        ("hub", "checkpoints and bundles of the Hugging Face Hub", "huggingface_hub"),
        ("sign", "sign bundles (docs/how-to/export.md)", "cryptography"),
        ("ray-data", "answer tables of prompts on Ray (docs/how-to/prompt-files.md)", "ray pyarrow pandas"),
        ("plot", "plot measurements", "matplotlib"),
        ("eval", "evaluate with lm-eval (docs/how-to/measure.md)", "lm_eval"),
        ("test", "run the tests", "pytest hypothesis mypy ruff"),
    )
)
"""Abilities that do not concern devices, by the extra that installs them."""


@click.command(
    name="doctor",
    cls=GroupedCommand,
    examples=("lopa-export doctor", "lopa-export doctor --all", "lopa-export doctor BUNDLE"),
)
@click.argument("bundle", required=False, type=click.Path(path_type=Path))
@software_gpu_option
@option("--all", "show_all", is_flag=True, help="Also list what is not installed, with the command to install it.")
def command(bundle: Path | None, show_all: bool) -> None:
    """Show what this install can export, build and run.

    With BUNDLE, time a few forwards on each available device and name the fastest.
    """
    opened = None if bundle is None else Bundle.open(bundle)
    found = [(ability, _parts(ability)) for ability in abilities()]
    complete = [ability for ability, parts in found if not _missing(ability, parts)]
    _print("machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
    _print("python", platform.python_version())
    _print("lopa", f"{lopa.__version__} in {Path(lopa.__file__).parent}")
    for note in _notes_on_import():
        _print("", note)
    _print("installed", ", ".join(ability.use for ability in complete) or "nothing, not even the runtime")
    hidden = 0
    for ability, parts in found:
        missing = _missing(ability, parts)
        is_outdated = any(version is not None and _is_too_old(version, ability) for version in parts.values())
        if missing and not (show_all or ability is FAMILIES["cpu"].ability or is_outdated):
            hidden += 1
            continue
        there = ", ".join(part for part in parts.values() if part is not None)
        _print("missing" if missing else "ok", f"{ability.name}: {there or 'not installed'}")
        if missing:
            _print("", f"needs {', '.join(missing)}: {ability.remedy()}")
    _print("kernels", f"for quantized weights: {kernel_status()}")
    _print("kernels", f"for CUDA: {library_status() or kernels_status()}")
    devices = list(_devices())
    for device in devices:
        if device.is_here or show_all:
            _print("device", f"{device.name}: {device.state}")
        else:
            hidden += 1
    _print_fastest(opened, None if show_all else [device.name for device in devices if device.is_here])
    if hidden:
        _print("more", f"{hidden} abilities and devices are not installed here: lopa-export doctor --all lists them")


def _notes_on_import() -> Iterator[str]:
    """Yield what differs from the imported package: the checkout in this folder, the shell's program, the metadata."""
    package, checkout = Path(lopa.__file__).resolve().parent, Path("src/lopa").resolve()
    if (checkout / "__init__.py").is_file() and checkout != package:
        yield f"not {checkout}, whose edits have no effect: pip install -c constraints.txt -e . uses it"
    program = shutil.which("lopa-export")
    if program is not None and Path(program).parent != Path(sys.executable).parent:
        yield f"but the shell starts {program}, of another environment: activate the one that you mean"
    if (installed := installed_version("lopa-export")) not in (None, lopa.__version__):
        yield f"but version {installed} is installed: install again"


def abilities() -> list[Ability]:
    """Return everything that an install can be used for, devices first."""
    return [*dict.fromkeys(family.ability for family in FAMILIES.values()), *_OTHER_ABILITIES]


def _print(label: str, text: str) -> None:
    click.echo(f"{label:11} {text}")


def _print_fastest(bundle: Bundle | None, here: Sequence[str] | None) -> None:
    """Time the devices in `here`, or every device if it is None.

    A device that does not open gets a line with the reason.
    """
    if bundle is None:
        _print("fastest", "lopa-export doctor BUNDLE times some forwards on each device")
        return
    from lopa.cli.start.fastest_device import lines_of_fastest  # this import loads the runtime

    for line in lines_of_fastest(bundle, timed_devices(here), report_all=here is None):
        _print("fastest", line)


def timed_devices(names: Sequence[str] | None) -> list[str]:
    """Return the devices to time for the `names` in this command's output, or all devices if `names` is None."""
    prefixes = ("",) if names is None else tuple(name.removesuffix("N") for name in names)
    return [device for family in FAMILIES.values() for device in family.timed if device.startswith(prefixes)]


def _parts(ability: Ability) -> dict[str, str | None]:
    """Return the installed versions of an ability's parts by name; None for a missing part."""
    found = {name: _version(name) for name in ability.distributions}
    return found | {name: _program(name) for name in ability.programs}


def _missing(ability: Ability, parts: Mapping[str, str | None]) -> list[str]:
    return [name for name, found in parts.items() if found is None or _is_too_old(found, ability)]


def _version(distributions: str) -> str | None:
    """Return name and version of the installed distribution among "a or b", or None if neither is installed."""
    names = distributions.split(" or ")
    if "onnxruntime" in names:
        return _imported_onnxruntime()
    for name in names:
        if (version := installed_version(name)) is not None:
            return f"{name} {version}"
    return None


def _imported_onnxruntime() -> str | None:
    """Return name and version of the package that `import onnxruntime` finds, as it reports them; None without one.

    Several distributions contain a module of that name. The imported one depends on sys.path and on the order of
    installation. The metadata of the others remains.
    """
    try:
        from onnxruntime.capi.build_and_package_info import __version__, package_name
    except ImportError:
        return None
    return f"{package_name} {__version__}"


def _is_too_old(found: str, ability: Ability) -> bool:
    """Return whether `found`, a distribution with its version or the path of a program, is too old for `ability`."""
    return version_numbers(found.rpartition(" ")[2]) < ability.min_version


def _program(name: str) -> str | None:
    """Return the path of a program on PATH or next to this interpreter, where pip installs programs."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _devices() -> Iterator[DeviceStatus]:
    """Yield the devices of this machine by family, except devices that span several processes."""
    for family in FAMILIES.values():
        if family.spans_processes:
            continue
        if family.status_module is not None:
            try:
                find: Callable[[str], list[DeviceStatus]] = importlib.import_module(family.status_module).find_devices
            except ImportError as error:
                yield DeviceStatus(family.label, str(error), is_here=False)
                continue
            try:
                yield from find(family.name)
            except Exception as error:  # a vendor's library may raise anything
                yield DeviceStatus(family.label, f"{type(error).__name__}: {error}")
        elif missing := _missing(family.ability, _parts(family.ability)):
            state = f"needs {', '.join(missing)}: {family.ability.remedy()}"
            yield DeviceStatus(family.label, state, is_here=False)
        else:
            yield DeviceStatus(family.label, f"ready ({family.description})")
