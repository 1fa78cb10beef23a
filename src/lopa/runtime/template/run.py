"""Run of a chat template on jinja's syntax tree, within a budget. This module does not depend on messages or tokens.

jinja compiles a template to Python, which loses the origin of text. Single operations can also have unbounded cost
there, such as a power or a nested loop. Here one small method evaluates each kind of node and charges the budget first.
This module evaluates statements. `expressions` and `operations` evaluate the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, Undefined, nodes

from lopa.runtime.template.budget import Budget
from lopa.runtime.template.expressions import Expressions, unsupported_error
from lopa.runtime.template.methods import to_text
from lopa.runtime.template.text import join_marked
from lopa.runtime.template.values import Loop, Macro, Namespace, Scope


class _Break(Exception):  # noqa: N818 (not an error)
    pass


class _Continue(Exception):  # noqa: N818 (not an error)
    pass


class TemplateRun(Expressions):
    """One rendering. Failures raise jinja's TemplateError or the error of the Python operation."""

    def __init__(self, budget: Budget, names: Mapping[str, Any]) -> None:
        super().__init__(budget)
        self._names = names
        self._loops = 0
        self._written: list[str] = []

    def text(self, template: nodes.Template) -> str:
        """Return the text of `template`, with its marks (lopa.runtime.template.text)."""
        return self.render_body(template.body, Scope({}, Scope(dict(self._names))))

    def render_body(self, body: Sequence[nodes.Node], scope: Scope) -> str:
        """Return the text that a block writes."""
        outer, self._written = self._written, []
        try:
            self._run_body(body, scope)
            text = join_marked(self._written)
        finally:
            self._written = outer
        self.budget.characters(len(text))
        return text

    def render_macro(self, macro: Macro, values: Sequence[Any], named: Mapping[str, Any]) -> str:
        """Return the text that the body of a macro writes."""
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
        return self.render_body(macro.body, Scope({}, scope))

    def _run_body(self, body: Sequence[nodes.Node], scope: Scope) -> None:
        with self._nested():
            for node in body:
                self.budget.operations()
                rule = _STATEMENTS.get(type(node))
                if rule is None:
                    raise unsupported_error(node)
                rule(self, node, scope)

    def _output(self, node: nodes.Output, scope: Scope) -> None:
        for each in node.nodes:
            text = to_text(self.budget, self._value(each, scope))
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
        text = self.render_body(node.body, Scope({}, scope))
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
                raise ValueError(f"cannot assign {len(values)} values to {len(target.items)} names")
            for each, part in zip(target.items, values, strict=True):
                self._assign_to(each, part, scope)
        else:
            raise unsupported_error(target)

    def _macro(self, node: nodes.Macro, scope: Scope) -> None:
        scope.values[node.name] = _macro_from(node, node.name, scope)

    def _call_block(self, node: nodes.CallBlock, scope: Scope) -> None:
        value = self._call(node.call, scope, {"caller": _macro_from(node, "caller", scope)})
        self._written.append(to_text(self.budget, value))

    def _filter_block(self, node: nodes.FilterBlock, scope: Scope) -> None:
        text = self.render_body(node.body, Scope({}, scope))
        self._written.append(to_text(self.budget, self._filter(node.filter, scope, inner=text)))

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


def _macro_from(node: nodes.Macro | nodes.CallBlock, name: str, scope: Scope) -> Macro:
    return Macro(name, [each.name for each in node.args], node.defaults, node.body, scope)


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
