"""A chat template run over jinja's own syntax tree, within a budget. Knows no messages and no tokens.

jinja turns a template into Python and runs that; what Python then does in one operation (a product of a text, a power,
a nested loop) nobody bounds, and which text came from where is lost. Here every node of the tree is evaluated by one
small function, which charges the budget first. There is nothing of Python to reach: attributes are keys of mappings,
names of a namespace, of a loop, and the methods of METHODS.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError, UndefinedError

from lopa.runtime.template.budget import Budget, bounded
from lopa.runtime.template.filters import FILTERS, TESTS
from lopa.runtime.template.methods import (
    METHODS,
    characters_of,
    joined_text,
    key_of,
    percent_formatted,
    text_from,
)
from lopa.runtime.template.text import joined, marked, marks_of, part_of
from lopa.runtime.template.values import Function, Loop, Macro, Namespace, Scope

_DEEPEST = 150
_PLAIN = (str, int, float, list, tuple, dict)
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda value, container: value in container,
    "notin": lambda value, container: value not in container,
}
_NUMBERS: Mapping[type[nodes.BinExpr], Callable[[Any, Any], Any]] = {
    nodes.Add: operator.add,
    nodes.Sub: operator.sub,
    nodes.Mul: operator.mul,
    nodes.Div: operator.truediv,
    nodes.FloorDiv: operator.floordiv,
    nodes.Mod: operator.mod,
}


class _Break(Exception):  # noqa: N818 (no error)
    pass


class _Continue(Exception):  # noqa: N818 (no error)
    pass


class TemplateRun:
    """One rendering. What goes wrong raises jinja's TemplateError, or whatever Python's operation raises."""

    def __init__(self, budget: Budget, names: Mapping[str, Any]) -> None:
        self.budget = budget
        self._names = names
        self._depth = 0
        self._loops = 0
        self._written: list[str] = []

    def text(self, template: nodes.Template) -> str:
        """The text that `template` gives, with its marks (lopa.runtime.template.text)."""
        return self.text_of_body(template.body, Scope({}, Scope(dict(self._names))))

    def text_of_body(self, body: Sequence[nodes.Node], scope: Scope) -> str:
        """What a block writes, as a value."""
        outside, self._written = self._written, []
        try:
            self._run_body(body, scope)
            text = joined(self._written)
        finally:
            self._written = outside
        self.budget.characters(len(text))
        return text

    def call(self, callee: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The value of callee(*values, **named)."""
        if isinstance(callee, Function):
            return callee.run(*values, **named)
        if isinstance(callee, Macro):
            return self._call_macro(callee, values, named)
        if isinstance(callee, Undefined):
            _fail(callee)
        raise TypeError(f"{type(callee).__name__!r} object is not callable")

    def filtered(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """`value` through the filter `name`."""
        if name not in FILTERS:
            raise TemplateError(f"No filter named {name!r}.")
        self.budget.operations()
        return FILTERS[name](self, value, *values, **named)

    def tested(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Whether `value` passes the test `name`."""
        if name not in TESTS:
            raise TemplateError(f"No test named {name!r}.")
        self.budget.operations()
        return bool(TESTS[name](self, value, *values, **named))

    def items(self, value: Any) -> list[Any]:
        """What a for over `value` goes through."""
        if isinstance(value, Undefined):
            return []
        if isinstance(value, str):
            return characters_of(self.budget, value)
        if isinstance(value, (list, tuple, Mapping, range)):
            self.budget.operations(len(value))
            return list(value)
        raise TypeError(f"{type(value).__name__!r} object is not iterable")

    def attribute(self, value: Any, name: str) -> Any:
        """value.name, which prefers a method to a key."""
        if isinstance(value, Undefined):
            _fail(value)
        if isinstance(value, Namespace):
            return value.values[name] if name in value.values else Undefined(obj=value, name=name)
        if isinstance(value, Loop):
            return value.attribute(name)
        kind = next((kind for kind in _PLAIN if isinstance(value, kind)), None)
        method = METHODS.get(kind, {}).get(name) if kind is not None else None
        if method is not None:
            return Function(name, lambda *values, **named: method(self.budget, value, *values, **named))
        if name.startswith("__") or (kind is not None and hasattr(kind, name)):
            raise SecurityError(f"access to attribute {name!r} of {type(value).__name__!r} object is unsafe.")
        if isinstance(value, Mapping) and name in value:
            return value[name]
        return Undefined(obj=value, name=name)

    def item(self, value: Any, key: Any) -> Any:
        """value[key], undefined where there is none."""
        if isinstance(value, Undefined):
            _fail(value)
        if isinstance(value, Mapping):
            if key_of(key) in value:
                return value[key]
        elif isinstance(value, (str, list, tuple, range)) and isinstance(key, int):
            if not -len(value) <= key < len(value):
                return Undefined(obj=value, name=key)  # type: ignore[arg-type]
            place = key % len(value)
            return part_of(value, slice(place, place + 1)) if isinstance(value, str) else value[place]
        return self.attribute(value, key) if isinstance(key, str) else Undefined(obj=value, name=key)

    def added(self, left: Any, right: Any) -> Any:
        """left + right."""
        if isinstance(left, str) and isinstance(right, str):
            return joined_text(self.budget, (left, right))
        for kind in (list, tuple):
            if isinstance(left, kind) and isinstance(right, kind):
                self.budget.operations(len(left) + len(right))
                return left + right  # type: ignore[operator]
        return _of_numbers(operator.add, left, right)

    # Statements

    def _run_body(self, body: Sequence[nodes.Node], scope: Scope) -> None:
        with self._deeper():
            for node in body:
                self.budget.operations()
                rule = _STATEMENTS.get(type(node))
                if rule is None:
                    raise _unsupported(node)
                rule(self, node, scope)

    def _output(self, node: nodes.Output, scope: Scope) -> None:
        for each in node.nodes:
            text = text_from(self.budget, self._value(each, scope))
            self.budget.characters(len(text))
            self._written.append(text)

    def _if(self, node: nodes.If, scope: Scope) -> None:
        for branch in (node, *node.elif_):
            if self._value(branch.test, scope):
                return self._run_body(branch.body, scope)
        return self._run_body(node.else_, scope)

    def _for(self, node: nodes.For, scope: Scope) -> None:
        if node.recursive:
            raise TemplateError("recursive loops are not supported")
        items = self.items(self._value(node.iter, scope))
        if node.test is not None:
            items = [item for item in items if self._value(node.test, self._with_target(node.target, item, scope))]
        self._loops += 1
        loop = Loop(items, self._loops)
        for index, item in enumerate(items):
            self.budget.operations()
            loop.index0 = index
            inner = self._with_target(node.target, item, scope)
            inner.values["loop"] = loop
            try:
                self._run_body(node.body, inner)
            except _Continue:
                continue
            except _Break:
                break
        self._loops -= 1
        if not items:
            self._run_body(node.else_, Scope({}, scope))

    def _with_target(self, target: nodes.Node, item: Any, scope: Scope) -> Scope:
        inner = Scope({}, scope)
        self._assign_to(target, item, inner)
        return inner

    def _assign(self, node: nodes.Assign, scope: Scope) -> None:
        self._assign_to(node.target, self._value(node.node, scope), scope)

    def _assign_block(self, node: nodes.AssignBlock, scope: Scope) -> None:
        text = self.text_of_body(node.body, Scope({}, scope))
        value = text if node.filter is None else self._filter(node.filter, scope, inner=text)
        self._assign_to(node.target, value, scope)

    def _assign_to(self, target: nodes.Node, value: Any, scope: Scope) -> None:
        if isinstance(target, nodes.Name):
            scope.values[target.name] = value
        elif isinstance(target, nodes.NSRef):
            space = scope.find(target.name)
            if not isinstance(space, Namespace):
                raise TemplateError("cannot assign attribute on non-namespace object")
            space.values[target.attr] = value
        elif isinstance(target, nodes.Tuple):
            values = self.items(value)
            if len(values) != len(target.items):
                raise ValueError(f"{len(values)} values for {len(target.items)} names")
            for each, part in zip(target.items, values, strict=True):
                self._assign_to(each, part, scope)
        else:
            raise _unsupported(target)

    def _macro(self, node: nodes.Macro, scope: Scope) -> None:
        scope.values[node.name] = _macro_from(node, node.name, scope)

    def _call_block(self, node: nodes.CallBlock, scope: Scope) -> None:
        value = self._call(node.call, scope, {"caller": _macro_from(node, "caller", scope)})
        self._written.append(text_from(self.budget, value))

    def _filter_block(self, node: nodes.FilterBlock, scope: Scope) -> None:
        text = self.text_of_body(node.body, Scope({}, scope))
        self._written.append(text_from(self.budget, self._filter(node.filter, scope, inner=text)))

    def _with(self, node: nodes.With, scope: Scope) -> None:
        inner = Scope({}, scope)
        for target, value in zip(node.targets, node.values, strict=True):
            self._assign_to(target, self._value(value, scope), inner)
        self._run_body(node.body, inner)

    def _scope(self, node: nodes.Scope, scope: Scope) -> None:
        self._run_body(node.body, Scope({}, scope))

    def _expression_statement(self, node: nodes.ExprStmt, scope: Scope) -> None:
        self._value(node.node, scope)

    def _break(self, _node: nodes.Break, _scope: Scope) -> None:
        raise _Break

    def _continue(self, _node: nodes.Continue, _scope: Scope) -> None:
        raise _Continue

    # Expressions

    def _value(self, node: nodes.Node, scope: Scope) -> Any:
        self.budget.operations()
        rule = _EXPRESSIONS.get(type(node))
        if rule is None:
            raise _unsupported(node)
        with self._deeper():
            return rule(self, node, scope)

    def _const(self, node: nodes.Const, _scope: Scope) -> Any:
        return node.value

    def _data(self, node: nodes.TemplateData, _scope: Scope) -> str:
        return node.data

    def _name(self, node: nodes.Name, scope: Scope) -> Any:
        return scope.find(node.name)

    def _list(self, node: nodes.List, scope: Scope) -> list[Any]:
        return [self._value(each, scope) for each in node.items]

    def _tuple(self, node: nodes.Tuple, scope: Scope) -> tuple[Any, ...]:
        return tuple(self._value(each, scope) for each in node.items)

    def _dict(self, node: nodes.Dict, scope: Scope) -> dict[Any, Any]:
        return {key_of(self._value(each.key, scope)): self._value(each.value, scope) for each in node.items}

    def _condition(self, node: nodes.CondExpr, scope: Scope) -> Any:
        if self._value(node.test, scope):
            return self._value(node.expr1, scope)
        if node.expr2 is None:
            return Undefined("the inline if-expression evaluated to false and no else section was defined.")
        return self._value(node.expr2, scope)

    def _and(self, node: nodes.And, scope: Scope) -> Any:
        left = self._value(node.left, scope)
        return self._value(node.right, scope) if left else left

    def _or(self, node: nodes.Or, scope: Scope) -> Any:
        left = self._value(node.left, scope)
        return left if left else self._value(node.right, scope)

    def _not(self, node: nodes.Not, scope: Scope) -> bool:
        return not self._value(node.node, scope)

    def _negative(self, node: nodes.Neg, scope: Scope) -> Any:
        return _of_numbers(operator.mul, -1, self._value(node.node, scope))

    def _positive(self, node: nodes.Pos, scope: Scope) -> Any:
        return _of_numbers(operator.mul, 1, self._value(node.node, scope))

    def _concat(self, node: nodes.Concat, scope: Scope) -> str:
        return joined_text(self.budget, [self._value(each, scope) for each in node.nodes])

    def _compare(self, node: nodes.Compare, scope: Scope) -> Any:
        left = self._value(node.expr, scope)
        result: Any = True
        for operand in node.ops:
            right = self._value(operand.expr, scope)
            for each in (left, right):
                self.budget.weigh(each)
            result = _COMPARISONS[operand.op](left, right)
            if not result:
                return result
            left = right
        return result

    def _binary(self, node: nodes.BinExpr, scope: Scope) -> Any:
        left, right = self._value(node.left, scope), self._value(node.right, scope)
        kind = type(node)
        if kind is nodes.Add:
            return self.added(left, right)
        if kind is nodes.Mod and isinstance(left, str):
            return percent_formatted(self.budget, left, right)
        if kind is nodes.Mul and (isinstance(left, (str, list, tuple)) or isinstance(right, (str, list, tuple))):
            return self._repeated(left, right)
        return _of_numbers(_NUMBERS[kind], left, right)

    def _repeated(self, left: Any, right: Any) -> Any:
        value, count = (right, left) if isinstance(left, int) else (left, right)
        if not isinstance(count, int):
            raise TypeError(f"can't multiply sequence by {type(count).__name__!r}")
        count = max(0, count)
        if isinstance(value, str):
            self.budget.characters(len(value) * count)
            return marked(str(value) * count, marks_of(value) * count)
        self.budget.operations(len(value) * count)
        return value * count

    def _power(self, node: nodes.Pow, scope: Scope) -> Any:
        base, exponent = self._value(node.left, scope), self._value(node.right, scope)
        if isinstance(exponent, int) and not -64 <= exponent <= 64:
            raise TemplateError("it makes too large a number")
        return _of_numbers(operator.pow, base, exponent)

    def _getattr(self, node: nodes.Getattr, scope: Scope) -> Any:
        return self.attribute(self._value(node.node, scope), node.attr)

    def _getitem(self, node: nodes.Getitem, scope: Scope) -> Any:
        value = self._value(node.node, scope)
        if not isinstance(node.arg, nodes.Slice):
            return self.item(value, self._value(node.arg, scope))
        written = (node.arg.start, node.arg.stop, node.arg.step)
        bounds = [None if each is None else self._value(each, scope) for each in written]
        return self._slice(value, slice(*bounds))

    def _slice(self, value: Any, which: slice) -> Any:
        if isinstance(value, Undefined):
            _fail(value)
        if isinstance(value, str):
            self.budget.characters(len(value))
            return part_of(value, which)
        if not isinstance(value, (list, tuple, range)):
            raise TypeError(f"{type(value).__name__!r} object is not subscriptable")
        self.budget.operations(len(value))
        return value[which]

    def _filter(self, node: nodes.Filter, scope: Scope, inner: Any = None) -> Any:
        value = inner if node.node is None else self._value(node.node, scope)
        return self.filtered(node.name, value, *self._arguments(node, scope))

    def _test(self, node: nodes.Test, scope: Scope) -> bool:
        return self.tested(node.name, self._value(node.node, scope), *self._arguments(node, scope))

    def _call(self, node: nodes.Call, scope: Scope, more: Mapping[str, Any] | None = None) -> Any:
        callee = self._value(node.node, scope)
        values, named = self._arguments(node, scope)
        return self.call(callee, values, {**named, **(more or {})})

    def _arguments(
        self, node: nodes.Call | nodes.Filter | nodes.Test, scope: Scope
    ) -> tuple[list[Any], dict[str, Any]]:
        values = [self._value(each, scope) for each in node.args]
        named = {str(each.key): self._value(each.value, scope) for each in node.kwargs}
        if node.dyn_args is not None:
            values.extend(self.items(self._value(node.dyn_args, scope)))
        if node.dyn_kwargs is not None:
            more = self._value(node.dyn_kwargs, scope)
            self.budget.operations(len(more))
            named.update(more)
        return values, named

    def _call_macro(self, macro: Macro, values: Sequence[Any], named: Mapping[str, Any]) -> str:
        left = dict(named)
        scope = Scope({"caller": left.pop("caller", Undefined(name="caller"))}, macro.scope)
        first_default = len(macro.arguments) - len(macro.defaults)
        for number, name in enumerate(macro.arguments):
            if number < len(values):
                scope.values[name] = values[number]
            elif name in left:
                scope.values[name] = left.pop(name)
            elif number >= first_default:
                scope.values[name] = self._value(macro.defaults[number - first_default], scope)
            else:
                scope.values[name] = Undefined(f"parameter {name!r} was not provided", name=name)
        scope.values["varargs"] = tuple(values[len(macro.arguments) :])
        scope.values["kwargs"] = left
        return self.text_of_body(macro.body, Scope({}, scope))

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise TemplateError("it is nested too deeply")
        try:
            yield
        finally:
            self._depth -= 1


def _macro_from(node: nodes.Macro | nodes.CallBlock, name: str, scope: Scope) -> Macro:
    return Macro(name, [each.name for each in node.args], node.defaults, node.body, scope)


def _of_numbers(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """The operation, if it is one of numbers."""
    for each in (left, right):
        if isinstance(each, Undefined):
            _fail(each)
        if not isinstance(each, (int, float)):
            kinds = f"{type(left).__name__!r} and {type(right).__name__!r}"
            raise TypeError(f"unsupported operand type(s) for {operation.__name__}: {kinds}")
    return bounded(operation(left, right))


def _fail(value: Undefined) -> None:
    """Raise what jinja says of the use of an undefined value."""
    raise UndefinedError(value._undefined_message)


def _unsupported(node: nodes.Node) -> TemplateError:
    if isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        return TemplateError("no loader for this environment specified")
    return TemplateError(f"{type(node).__name__} is nothing that a chat template may use")


_STATEMENTS: Mapping[type[nodes.Node], Callable[..., None]] = {
    nodes.Output: TemplateRun._output,
    nodes.If: TemplateRun._if,
    nodes.For: TemplateRun._for,
    nodes.Assign: TemplateRun._assign,
    nodes.AssignBlock: TemplateRun._assign_block,
    nodes.Macro: TemplateRun._macro,
    nodes.CallBlock: TemplateRun._call_block,
    nodes.FilterBlock: TemplateRun._filter_block,
    nodes.With: TemplateRun._with,
    nodes.Scope: TemplateRun._scope,
    nodes.ExprStmt: TemplateRun._expression_statement,
    nodes.Break: TemplateRun._break,
    nodes.Continue: TemplateRun._continue,
}
_EXPRESSIONS: Mapping[type[nodes.Node], Callable[..., Any]] = {
    nodes.Const: TemplateRun._const,
    nodes.TemplateData: TemplateRun._data,
    nodes.Name: TemplateRun._name,
    nodes.List: TemplateRun._list,
    nodes.Tuple: TemplateRun._tuple,
    nodes.Dict: TemplateRun._dict,
    nodes.CondExpr: TemplateRun._condition,
    nodes.And: TemplateRun._and,
    nodes.Or: TemplateRun._or,
    nodes.Not: TemplateRun._not,
    nodes.Neg: TemplateRun._negative,
    nodes.Pos: TemplateRun._positive,
    nodes.Concat: TemplateRun._concat,
    nodes.Compare: TemplateRun._compare,
    nodes.Pow: TemplateRun._power,
    nodes.Getattr: TemplateRun._getattr,
    nodes.Getitem: TemplateRun._getitem,
    nodes.Filter: TemplateRun._filter,
    nodes.Test: TemplateRun._test,
    nodes.Call: TemplateRun._call,
    **dict.fromkeys(_NUMBERS, TemplateRun._binary),
}
