"""Expressions of chat templates: one small method for each kind of node of jinja's parser."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError, Undefined, nodes

from lopa.runtime.template.budget import Budget
from lopa.runtime.template.methods import check_key, join_text
from lopa.runtime.template.operations import Operations, calculate, raise_undefined
from lopa.runtime.template.values import Function, Macro, Scope

_MAX_DEPTH = 150
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


class Expressions(Operations, ABC):
    """Evaluator of expression nodes within the budget and a maximum depth. A subclass runs macros."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._depth = 0

    @abstractmethod
    def render_macro(self, macro: Macro, values: Sequence[Any], named: Mapping[str, Any]) -> str:
        """Return the text that `macro` writes when called with these arguments."""

    def call(self, callee: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return callee(*values, **named)."""
        if isinstance(callee, Function):
            return callee.run(*values, **named)
        if isinstance(callee, Macro):
            return self.render_macro(callee, values, named)
        if isinstance(callee, Undefined):
            raise_undefined(callee)
        raise TypeError(f"{type(callee).__name__!r} object is not callable")

    def _value(self, node: nodes.Node, scope: Scope) -> Any:
        self.budget.operations()
        rule = _EXPRESSIONS.get(type(node))
        if rule is None:
            raise unsupported_error(node)
        with self._nested():
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
        return {check_key(self._value(each.key, scope)): self._value(each.value, scope) for each in node.items}

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
        return calculate(operator.mul, -1, self._value(node.node, scope))

    def _positive(self, node: nodes.Pos, scope: Scope) -> Any:
        return calculate(operator.mul, 1, self._value(node.node, scope))

    def _concat(self, node: nodes.Concat, scope: Scope) -> str:
        return join_text(self.budget, [self._value(each, scope) for each in node.nodes])

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
            return self.add(left, right)
        if kind is nodes.Mod and isinstance(left, str):
            raise TemplateError("text % values is not supported; join the parts with ~")
        if kind is nodes.Mul and (isinstance(left, (str, list, tuple)) or isinstance(right, (str, list, tuple))):
            return self.repeat(left, right)
        return calculate(_NUMBERS[kind], left, right)

    def _power(self, node: nodes.Pow, scope: Scope) -> Any:
        base, exponent = self._value(node.left, scope), self._value(node.right, scope)
        if isinstance(exponent, int) and not -64 <= exponent <= 64:
            raise TemplateError("the template creates too large a number")
        return calculate(operator.pow, base, exponent)

    def _getattr(self, node: nodes.Getattr, scope: Scope) -> Any:
        return self.attribute(self._value(node.node, scope), node.attr)

    def _getitem(self, node: nodes.Getitem, scope: Scope) -> Any:
        value = self._value(node.node, scope)
        if not isinstance(node.arg, nodes.Slice):
            return self.item(value, self._value(node.arg, scope))
        written = (node.arg.start, node.arg.stop, node.arg.step)
        bounds = [None if each is None else self._value(each, scope) for each in written]
        return self.take_slice(value, slice(*bounds))

    def _filter(self, node: nodes.Filter, scope: Scope, inner: Any = None) -> Any:
        value = inner if node.node is None else self._value(node.node, scope)
        return self.apply_filter(node.name, value, *self._arguments(node, scope))

    def _test(self, node: nodes.Test, scope: Scope) -> bool:
        return self.apply_test(node.name, self._value(node.node, scope), *self._arguments(node, scope))

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

    @contextmanager
    def _nested(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise TemplateError("the template is nested too deeply")
        try:
            yield
        finally:
            self._depth -= 1


def unsupported_error(node: nodes.Node) -> TemplateError:
    """Return the error for an unsupported node."""
    if isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        return TemplateError("no loader for this environment specified")
    return TemplateError(f"{type(node).__name__} is not supported in chat templates")


_EXPRESSIONS: Mapping[type[nodes.Node], Callable[..., Any]] = {
    nodes.Const: Expressions._const,
    nodes.TemplateData: Expressions._data,
    nodes.Name: Expressions._name,
    nodes.List: Expressions._list,
    nodes.Tuple: Expressions._tuple,
    nodes.Dict: Expressions._dict,
    nodes.CondExpr: Expressions._condition,
    nodes.And: Expressions._and,
    nodes.Or: Expressions._or,
    nodes.Not: Expressions._not,
    nodes.Neg: Expressions._negative,
    nodes.Pos: Expressions._positive,
    nodes.Concat: Expressions._concat,
    nodes.Compare: Expressions._compare,
    nodes.Pow: Expressions._power,
    nodes.Getattr: Expressions._getattr,
    nodes.Getitem: Expressions._getitem,
    nodes.Filter: Expressions._filter,
    nodes.Test: Expressions._test,
    nodes.Call: Expressions._call,
    **dict.fromkeys(_NUMBERS, Expressions._binary),
}
