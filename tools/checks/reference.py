"""Write the tables of the reference pages from the code: `python -m tools.checks.reference`.

The table NAME of a page is between the lines `<!-- generated: NAME -->` and `<!-- end -->`. A test compares the pages
with the code.
"""

import importlib
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import click

from lopa.serve.setting import ServerSetting

PAGES = Path(__file__).resolve().parents[2] / "docs"
_TABLE = re.compile(r"^<!-- generated: (\w+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def text_with_tables(text: str) -> str:
    """Return the text of a page with its tables made from the code. Raises KeyError for an unknown name."""
    return _TABLE.sub(lambda found: f"<!-- generated: {found[1]} -->\n\n{TABLES[found[1]]()}\n\n<!-- end -->", text)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    titles = tuple(head)
    lines = [titles, ("---",) * len(titles), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def commands() -> str:
    """Return a section for each command: its help, its usage and its options."""
    from lopa.cli.commands import COMMANDS, GROUPS

    names = [name for names in GROUPS.values() for name in names]
    found = [(name, importlib.import_module(COMMANDS[name]).command) for name in names]
    return "\n\n".join(section for name, command in found for section in _sections_of_command(command, name))


def decoding_options() -> str:
    """Return the options of GenerationConfig with their meaning, default and, for some, strategy or flag."""
    from lopa.cli.decode.generate import command
    from lopa.runtime.generation_config import OPTION_TABLE
    from lopa.runtime.strategy import STRATEGIES

    owners: dict[str, list[str]] = {}
    for strategy in STRATEGIES.values():
        for option in strategy.options:
            owners.setdefault(option.name, []).append(strategy.name)
    flags = {parameter.name: parameter.opts[0] for parameter in command.params}
    rows = []
    for name, each in OPTION_TABLE.items():
        only = f" Strategy: {', '.join(owners[name])}." if name in owners else ""
        other = "" if flags[name] == f"--{name.replace('_', '-')}" else f" Flag: `{flags[name]}`."
        rows.append((f"`{name}`", each.help + only + other, each.default_text))
    return table(("option", "meaning", "default"), rows)


def http_routes() -> str:
    """Return the paths of the server with their methods."""
    from lopa.serve.protocols.api_description import PATHS

    return table(("path", "answer"), [(f"`{path}`", answer) for path, (answer, *_) in PATHS.items()])


def http_fields() -> str:
    """Return the fields of a request body that the page does not explain, grouped by effect."""
    from lopa.serve.openai import body_options, foreign_options

    effects: dict[str, list[str]] = {}
    for name, option in body_options._OPTIONS.items():
        effects.setdefault(f"decoding option `{option}`", []).append(name)
    effects["converted to decoding options"] = list(foreign_options.MAPPED)
    effects["ignored"] = sorted(foreign_options.IGNORED)
    for name, values in foreign_options.NEUTRAL.items():
        accepted = " or ".join(f"`{json.dumps(value)}`" for value in (*values, None))
        effects.setdefault(f"only {accepted}; otherwise status 400", []).append(name)
    rows = [
        (", ".join(f"`{name}`" for name in names if name not in _EXPLAINED), effect)
        for effect, names in effects.items()
    ]
    return table(("field", "effect"), [row for row in rows if row[0]])


def errors() -> str:
    """Return the public error classes with their exit codes and meanings."""
    import lopa

    kinds = [getattr(lopa, name) for name in dir(lopa) if name.endswith("Error")]
    kinds.sort(key=lambda kind: (len(kind.__mro__), kind.__name__))
    rows = (
        (f"`{kind.__name__}`", f"`{kind.__base__.__name__}`", kind.exit_code, _first_paragraph(kind)) for kind in kinds
    )
    return table(("error", "base", "exit code", "raised for"), rows)


def python_names() -> str:
    """Return the public names of lopa with their methods and signatures."""
    import lopa

    rows = []
    for name in dir(lopa):
        found = getattr(lopa, name)
        if not isinstance(found, (type, FunctionType)) or name.endswith("Error") or found.__module__[:5] != "lopa.":
            continue
        is_class = isinstance(found, type)
        rows.append((f"`{name}`" if is_class else f"`{name}{_parameters(found)}`", _first_paragraph(found)))
        for method, attribute in vars(found).items() if is_class else ():
            function = getattr(attribute, "__func__", attribute)
            if inspect.isfunction(function) and not method.startswith("_") and function.__doc__:
                rows.append((f"`{name}.{method}{_parameters(function)}`", _first_paragraph(function)))
    return table(("name", "meaning"), rows)


def metrics() -> str:
    """Return the metrics of the server with their kinds, labels and help texts."""
    from lopa.serve.metrics import ServeMetrics

    server = ServeMetrics("model")
    rows = []
    for family in server.registry.collect():
        if family.name.startswith("lopa_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"model", "le"})
            rows.append((f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation))
    return table(("metric", "type", "labels besides `model`", "meaning"), rows)


def ray_options() -> str:
    """Return the options of the application on Ray Serve. Those of `serve` are only named."""
    from lopa.serve.ray.ray_options import RayOptions
    from lopa.serve.setting import flags_of, settings_of

    own = RayOptions.__annotations__
    named = ((name, each) for name, each in settings_of(RayOptions).items() if name in own)
    rows = [(f"`{name}`", _default_of(each), each.help) for name, each in named]
    served = ", ".join(f"`{name}`" for name, field in flags_of(RayOptions).items() if field not in own)
    rows += [("`bundle`, `model`", "", "One bundle and its name."), (served, "", "As for `serve`, per open bundle.")]
    return table(("option", "default", "meaning"), rows)


def triton_parameters() -> str:
    """Return the parameters of config.pbtxt."""
    from lopa.serve.server_settings import ServerSettings
    from lopa.serve.setting import settings_of
    from lopa.serve.triton.config_text import BUNDLE, DEVICE, PYTHON_PATH, SETTINGS

    paths = [
        (f"`{BUNDLE}`", BUNDLE, "Path of the bundle. Relative paths start at the folder of model.py."),
        (f"`{DEVICE}GROUP`", "", "Devices of an instance group."),
        (f"`{PYTHON_PATH}`", "Triton's own", "Folders in which Triton's Python finds lopa."),
    ]
    found = {name: settings_of(ServerSettings)[name] for name in SETTINGS}
    rows = [(f"`{name}`", _default_of(each), each.help) for name, each in found.items()]
    return table(("parameter", "default", "meaning"), [*paths, *rows])


_EXPLAINED = {
    "model",
    "n",
    "stream",
    "stream_options",
    "thinking",
    "reasoning",
    "enable_thinking",
    "add_special_tokens",
    "echo",
    "best_of",
}
_COMMON = {"--quiet", "--verbose", "--help", "--help-all"}
TABLES: Mapping[str, Callable[[], str]] = {
    each.__name__: each
    for each in (
        commands,
        decoding_options,
        http_routes,
        http_fields,
        errors,
        python_names,
        metrics,
        ray_options,
        triton_parameters,
    )
}
"""Tables by the name in a marker."""


def _sections_of_command(command: click.Command, path: str) -> Iterator[str]:
    """Yield the section of a command, then the sections of its subcommands."""
    context = click.Context(command, info_name=f"lopa-export {path}")
    yield f"### {path}"
    yield "\n\n".join(_plain(part) for part in re.split(r"\n\s*\n", command.help or "") if "\b" not in part)
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```"
    rows = list(_option_rows(command, context))
    if rows:
        yield table(("option", "meaning"), rows)
    if _decoding_options(command):
        yield "All [decoding options](#decoding-options) as well."
    if examples := getattr(command, "examples", ()):
        yield "```sh\n" + "\n".join(examples) + "\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            if subcommand is not None and not subcommand.hidden:
                yield from _sections_of_command(subcommand, f"{path} {name}")


def _option_rows(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    common = _decoding_options(command)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in common:
            record = parameter.get_help_record(context)
            if record is not None and not _COMMON & set(parameter.opts):
                yield f"`{record[0]}`", _plain(record[1])


def _decoding_options(command: click.Command) -> Collection[str]:
    """Return the names of all decoding options, or none for a command with options of its own by some of the names."""
    from lopa.runtime.generation_config import OPTIONS

    return OPTIONS if set(OPTIONS) <= {each.name for each in command.params} else ()


def _default_of(setting: ServerSetting) -> str:
    shown = ", ".join(setting.default) if isinstance(setting.default, tuple) else setting.default
    return setting.default_text or ("" if shown is None else str(shown))


def _parameters(function: Callable[..., Any]) -> str:
    """Return the names of a function's parameters in parentheses, with their defaults."""
    signature = inspect.signature(function)
    shown = [
        each.replace(annotation=inspect.Parameter.empty)
        for name, each in signature.parameters.items()
        if name not in ("self", "cls")
    ]
    return str(inspect.Signature(shown))


def _first_paragraph(kind: object) -> str:
    return _plain(re.split(r"\n\s*\n", (kind.__doc__ or "").strip())[0])


def _plain(text: str) -> str:
    return " ".join(text.split())


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|")


def main() -> None:
    """Write the tables into the pages, and print the pages that change."""
    for page in sorted(PAGES.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (found := text_with_tables(text)) != text:
            page.write_text(found, encoding="utf-8")
            print(page)


if __name__ == "__main__":
    main()
