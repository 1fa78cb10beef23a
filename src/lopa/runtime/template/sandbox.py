"""jinja2's sandbox as transformers and vLLM set it up, with a budget for every operation of a template.

The compiled code of a template calls a function of this module for each loop, macro, call, filter, test and output. It
does so for comparisons and for operators that may multiply their operands too. The context has the rendering.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import lru_cache
from typing import Any, NamedTuple, cast

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from lopa.runtime.template.private_characters import Fields, to_plain
from lopa.runtime.template.rendering import CALL, NODE, Rendering, check_number

MAX_TEMPLATE_CHARACTERS = 100_000
"""Maximum characters of a template, three times the largest known one."""
FUNCTION_NAMES = ("range", "dict", "namespace", "raise_exception", "strftime_now")
_RUN = "the rendering"
_MAX_FORMAT, _MAX_INDENT, _MAX_JSON_INDENT = 100, 64, 16
_MAX_EXPONENT = 64
_PRODUCTS = frozenset(
    ("format", "join", "lstrip", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip")
)
"""Methods of texts whose result or time may grow with the product of their arguments."""
_DICT = frozenset(("get", "items", "keys", "values"))
_METHODS: Mapping[type, frozenset[str]] = {
    str: _PRODUCTS
    | {
        *("upper", "lower", "title", "capitalize", "removeprefix", "removesuffix", "split", "partition", "splitlines"),
        *("startswith", "endswith", "find", "index", "count"),
        *("isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower"),
    },
    dict: _DICT,
    Fields: _DICT,
    list: frozenset(("index", "count")),
    tuple: frozenset(("index", "count")),
}
"""Methods by type. No other attribute of a Python object can be read."""
_TEXT_FILTERS = ("capitalize", "float", "indent", "int", "lower", "replace", "safe", "string", "title", "trim", "upper")
_DEEP_FILTERS = ("dictsort", "join", "max", "min", "sort", "sum", "tojson", "unique")
"""Filters that read all of a value."""
_SHALLOW_FILTERS = (
    *("abs", "count", "d", "default", "first", "items", "last", "length", "list", "map"),
    *("reject", "rejectattr", "reverse", "select", "selectattr"),
)
_DEEP_TESTS = (
    *("eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">="),
    *("in", "lower", "upper"),
)
_TAGS = ("for", "if", "set", "macro", "call", "filter", "with", "break", "continue", "raw", "generation")
_OTHER_TAGS = {nodes.For: "for .. recursive", nodes.Block: "block", nodes.EvalContextModifier: "autoescape"}
_WIDTH = re.compile(r"\d{4}|\*|\{[^}]*\{")
"""A width of a format that is large, or that an argument sets."""


class CompiledTemplate(NamedTuple):
    """A template as Python code."""

    template: Template
    nodes: int
    """Nodes of its syntax tree."""

    def render(self, run: Rendering, names: Mapping[str, Any]) -> str:
        """Return the text. Failures raise jinja's TemplateError or the error of the Python operation."""
        return self.template.render({**names, _RUN: run})


@lru_cache(maxsize=16)
def compile_template(text: str) -> CompiledTemplate:
    """Return the compiled template. Raises TemplateError, or the error of Python's parser or compiler."""
    tree = parse_template(text)
    number = _size(tree)
    return CompiledTemplate(_ENVIRONMENT.from_string(_Charges().visit(tree)), number)


def parse_template(text: str) -> nodes.Template:
    """Return the syntax tree. Nothing is executed."""
    if len(text) > MAX_TEMPLATE_CHARACTERS:
        raise TemplateError(f"the template has more than {MAX_TEMPLATE_CHARACTERS} characters")
    return _ENVIRONMENT.parse(text)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ARG002
        kind = type(obj)
        return attr in _METHODS[kind] if kind in _METHODS else kind in _OBJECTS and not attr.startswith("_")

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, (str, int, float)):  # hashing a tuple of tuples may never end
            return self.undefined(obj=obj, name=argument)
        return super().getitem(obj, _key_of(obj, argument))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        run = _run(__context)
        run.charge(CALL + 8 * len(args) + 8 * len(kwargs))
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        receiver, args = getattr(method, "__self__", None), tuple(map(_listed, args))
        if receiver is not None:
            for name in ("_loop_vars", "_block_vars"):  # jinja's
                kwargs.pop(name, None)
            units = run.weigh([*args, *kwargs.values()])
        if isinstance(receiver, str):
            name = method.__name__
            run.charge(len(receiver) * (units if name in _PRODUCTS else 1))
            if name == "format":
                _check_format(receiver)

            def on_text(text: str, *given: Any, **named: Any) -> Any:
                return __self.getattr(text, name)(*given, **named)

            return run.apply(name, on_text, receiver, *args, **kwargs)
        if isinstance(receiver, dict):
            run.charge(NODE * len(receiver))
            args = (*(_key_of(receiver, each) for each in args[:1]), *args[1:])
        elif isinstance(receiver, (list, tuple)):
            run.weigh(receiver)
            return getattr(run.plain(receiver), method.__name__)(*run.plain(args))
        result = super().call(__context, __obj, *args, **kwargs)
        return run.text(result) if isinstance(result, str) else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        run = _run(context)
        if operator == "**" and isinstance(right, int) and abs(right) > _MAX_EXPONENT:
            raise TemplateError("the template creates too large a number")
        if operator == "%" and isinstance(left, str):
            _check_format(left)
            run.charge(len(left) * run.weigh(right))
            return run.apply("%", self.binop_table["%"], left, right)
        for value, other in () if type(left) is type(right) is int else ((left, right), (right, left)):
            if isinstance(value, (str, list, tuple)):
                count = max(other, 1) if operator == "*" and isinstance(other, int) else 1
                run.charge(count * (len(value) if isinstance(value, str) else 8 * len(value)))
        return check_number(self.binop_table[operator](left, right))


class _GenerationBlock(Extension):
    """Block {% generation %} .. {% endgeneration %}, which marks the assistant's text for training without changing
    it."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own type)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Charges(NodeTransformer):
    """Insert calls of the functions below, whose names no template can write."""

    def visit(self, node: nodes.Node) -> Any:
        size = _size(node) if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)) else 0
        self.generic_visit(node)
        match node:
            case nodes.For(recursive=False):
                node.iter = _filtered(cast(nodes.Expr, node.iter), _each, nodes.Const(size))
            case nodes.Macro() | nodes.CallBlock():
                node.body.insert(0, nodes.ExprStmt(_filtered(nodes.Const(size), _body)))
            case nodes.Compare():
                node.expr = _filtered(node.expr, _operand)
                for each in node.ops:
                    each.expr = _filtered(each.expr, _operand)
            case nodes.Concat():
                return _filtered(nodes.List(node.nodes), _concatenated)
            case nodes.Getitem(arg=nodes.Slice()):
                node.node = _filtered(node.node, _sliced)
            case nodes.Pair():
                node.key = _filtered(node.key, _key)
            case nodes.For() | nodes.Block() | nodes.EvalContextModifier():
                tag = next(tag for kind, tag in _OTHER_TAGS.items() if isinstance(node, kind))
                raise TemplateSyntaxError(f"Encountered unknown tag {tag!r}.", node.lineno)
        return node


def _size(node: nodes.Node) -> int:
    """Return the number of nodes, in which long texts count more."""
    own = 1 + len(node.data) // NODE if isinstance(node, nodes.TemplateData) else 1
    return own + sum(map(_size, node.iter_child_nodes()))


def _filtered(node: nodes.Expr, function: Callable[..., Any], *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, _inner_name(function.__name__), list(arguments), [], None, None)


def _inner_name(name: str) -> str:
    return f" {name}"


def _run(context: Context) -> Rendering:
    run = context.parent[_RUN]
    assert isinstance(run, Rendering)
    return run


def _listed(value: Any) -> Any:
    """Return the items of an iterator, which could be read only once."""
    return list(value) if isinstance(value, Iterator) and not isinstance(value, LoopContext) else value


@pass_context
def _each(context: Context, value: Any, size: int) -> Any:
    """Charge for all rounds of a loop over `value`."""
    value = _listed(value)
    if isinstance(value, Sized):
        _run(context).charge(NODE * size * (1 + len(value)))
    return value


@pass_context
def _body(context: Context, size: int) -> None:
    """Charge for the body of a macro."""
    _run(context).charge(NODE * size)


@pass_context
def _operand(context: Context, value: Any) -> Any:
    run = _run(context)
    run.weigh(value)
    return run.plain(value)


@pass_context
def _sliced(context: Context, value: Any) -> Any:
    if isinstance(value, (str, list, tuple)):
        _run(context).charge(8 * len(value))
    return value


@pass_context
def _concatenated(context: Context, values: list[Any]) -> str:
    return "".join(str(_run(context).text(each)) for each in values)


@pass_context
def _written(context: Context, value: Any) -> Any:
    return _run(context).text(value)


def _key(value: Any) -> Any:
    """Return a key of a mapping. Other keys could take very long to hash."""
    if not isinstance(value, (str, int, float, type(None))):
        raise TypeError(f"unhashable type: {type(value).__name__!r}")
    return value


def _key_of(mapping: Any, key: Any) -> Any:
    """Return `key`, or what its private characters stand for if the template's own `mapping` has only that."""
    is_missing = type(mapping) is dict and isinstance(key, str) and key not in mapping
    return to_plain(key) if is_missing else key


def _check_format(text: str) -> None:
    if _WIDTH.search(text):
        raise TemplateError("a format with a width above 999, or with a width as an argument, is not supported")


def _filter(name: str) -> Callable[..., Any]:
    """Return jinja's filter `name` with charges for its arguments."""

    @pass_context
    def run_filter(context: Context, value: Any, *values: Any, **named: Any) -> Any:
        run, value, values = _run(context), _listed(value), tuple(map(_listed, values))

        def original(*given: Any, **others: Any) -> Any:
            return context.environment.call_filter(_inner_name(name), given[0], given[1:], others, context)

        size = len(value) if isinstance(value, Sized) else 1
        units = 8 * size if name in _SHALLOW_FILTERS else run.weigh(value)
        factor = run.weigh([*values, *named.values()]) if (values or named) and name not in ("d", "default") else 1
        run.charge(CALL + units * factor)
        if isinstance(value, str) and name in _TEXT_FILTERS:
            return run.apply(name, original, value, *values, **named)
        if name in (*_TEXT_FILTERS, "tojson"):
            return run.whole(original, value, *values, **named)
        return original(value, *values, **named)

    return run_filter


def _test(name: str) -> Callable[..., Any]:
    """Return jinja's test `name` with charges, for texts without private characters."""

    @pass_context
    def run_test(context: Context, value: Any, *values: Any) -> Any:
        run = _run(context)
        run.charge(CALL + run.weigh([value, *values]))
        return context.environment.call_test(_inner_name(name), run.plain(value), run.plain(values), context=context)

    return run_test


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `value` as JSON as in transformers, without jinja's escapes for HTML."""
    if indent is not None and not 0 <= indent <= _MAX_JSON_INDENT:
        raise TemplateError(f"tojson with indent {indent}; at most {_MAX_JSON_INDENT} is allowed")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _indent(value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if (len(width) if isinstance(width, str) else width) > _MAX_INDENT:
        raise TemplateError(f"indent takes a width of at most {_MAX_INDENT}")
    return do_indent(value, width, first, blank)


class _Namespace(Namespace):
    """jinja's namespace without names that begin with an underscore, as in transformers."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        Namespace.__init__(args[0])
        for name, value in dict(*args[1:], **kwargs).items():
            args[0][name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"the name {name!r} of a namespace begins with an underscore")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"  # its values may contain each other


@pass_context
def _dict(context: Context, *values: Any, **named: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for given in (*values, named):
        pairs = list(given.items() if isinstance(given, Mapping) else given)
        _run(context).charge(NODE * len(pairs))
        made.update({_key(key): value for key, value in pairs})
    return made


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message)[:1000])


@pass_context
def _strftime_now(context: Context, time_format: str) -> str:
    """Return the local time, formatted by strftime."""
    if len(time_format) > _MAX_FORMAT or any(digit in time_format for digit in "0123456789"):
        raise TemplateError(f"strftime_now takes a format of at most {_MAX_FORMAT} characters without digits")
    return _run(context).now.strftime(time_format)


_OBJECTS = (LoopContext, Macro, _Namespace)
"""Objects that have attributes for templates."""


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, loopcontrols],
        optimized=False,  # the optimizer would evaluate constants without a budget
        finalize=_written,
    )
    filters = {**environment.filters, "tojson": _json, "indent": _indent, "safe": environment.filters["string"]}
    environment.filters = {_inner_name(each.__name__): each for each in (_each, _body, _operand, _concatenated)}
    environment.filters |= {_inner_name(each.__name__): each for each in (_sliced, _key)}
    for name in (*_TEXT_FILTERS, *_DEEP_FILTERS, *_SHALLOW_FILTERS):
        environment.filters |= {_inner_name(name): filters[name], name: _filter(name)}
    for name in _DEEP_TESTS:
        environment.tests |= {_inner_name(name): environment.tests[name], name: _test(name)}
    functions = (safe_range, _dict, _Namespace, _raise_exception, _strftime_now)
    environment.globals = dict(zip(FUNCTION_NAMES, functions, strict=True))
    return environment


_ENVIRONMENT = _environment()

_UNSUPPORTED: tuple[tuple[str, str, Iterable[str]], ...] = (
    ("the filter {}", r"^No filter named '(\w+)'", (*_TEXT_FILTERS, *_DEEP_FILTERS, *_SHALLOW_FILTERS)),
    ("the test {}", r"^No test named '(\w+)'", [name for name in _ENVIRONMENT.tests if name.isidentifier()]),
    ("the tag {}", r"^Encountered unknown tag '((?!end|el)[^']+)'", _TAGS),
    ("the tag include, import or extends", "^no loader", _TAGS),
    ("the function {}", "^'(cycler|joiner|lipsum)' is undefined", FUNCTION_NAMES),
    *(
        ("the method {}", rf"^access to attribute '([a-z]\w*)' of '{kind.__name__}' object is unsafe", names)
        for kind, names in _METHODS.items()
    ),
)
"""Features that jinja has and this module lacks, the start of the errors they end with, and what there is instead."""


def unsupported_feature(error: Exception) -> tuple[str, str] | None:
    """Return the feature that a template failed without, and the supported ones; None for another `error`."""
    if type(error) is not TemplateError:  # a template itself raises that one
        for feature, pattern, supported in _UNSUPPORTED:
            if found := re.search(pattern, str(error)):
                return feature.format(*found.groups()), "one of " + ", ".join(sorted(supported))
    return None
