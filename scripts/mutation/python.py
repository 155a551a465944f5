"""Mutants of Python: one change of an expression or a statement of a function.

Both forms are in the changed module, and a test of the active mutant's number chooses between them.
"""

from __future__ import annotations

import ast
import copy

from .sites import OPERATORS

__all__ = ["Change", "ModuleChanges"]

_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
}
_NODES = {symbol: node for node, symbol in _SYMBOLS.items()}
_OTHERS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
}


def _other(operator: ast.AST) -> ast.AST | None:
    kind = type(operator)
    if kind in _SYMBOLS:
        return _NODES[OPERATORS[_SYMBOLS[kind]]]()
    return _OTHERS[kind]() if kind in _OTHERS else None


class Change:
    """A place in a module, with its changed form.

    Args:
        node: the place.
        changed: its changed form; None: the statement is left out.
    """

    def __init__(self, node: ast.AST, changed: ast.AST | None) -> None:
        self.node = node
        self.changed = changed
        self.line = int(node.lineno)  # type: ignore[attr-defined]
        self.before = ast.unparse(node)
        self.after = "pass" if changed is None else ast.unparse(changed)


class ModuleChanges:
    """All places of a module that can be changed, and the module with some of them changed.

    Args:
        text: the source.
    """

    def __init__(self, text: str) -> None:
        self._module = ast.parse(text)
        self.places: list[Change] = []
        for node in ast.walk(self._module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for statement in node.body:
                    self._visit(statement)
        # Functions in functions were visited twice.
        self.places = list({id(place.node): place for place in self.places}.values())

    def changed(self, numbers: dict[int, int]) -> str:
        """The module's source in which places have both forms.

        Args:
            numbers: the mutant's number, by the index in `places`.
        """
        chosen = {
            id(self.places[index].node): (self.places[index], n) for index, n in numbers.items()
        }
        module = self._module
        _Both(chosen).visit(module)
        future = [
            i
            for i, s in enumerate(module.body)
            if isinstance(s, ast.ImportFrom) and s.module == "__future__"
        ]
        docstring = 1 if ast.get_docstring(module, clean=False) is not None else 0
        at = max([docstring, *(i + 1 for i in future)])
        module.body.insert(at, ast.parse("from gradcomp._mutants import mutant as _mutant").body[0])
        return ast.unparse(ast.fix_missing_locations(module))

    def _visit(self, node: ast.AST) -> None:
        if isinstance(
            node, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.Match
        ):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for statement in node.body:
                self._visit(statement)
            return
        changed = self._change(node)
        if changed is not None:
            self.places.append(Change(node, changed))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.places.append(Change(node, None))
        if isinstance(node, ast.If | ast.While | ast.IfExp) and self._change(node.test) is None:
            self.places.append(Change(node.test, ast.UnaryOp(ast.Not(), copy.deepcopy(node.test))))
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return  # zip's: what it refuses cannot happen
        for name, value in ast.iter_fields(node):
            if name == "annotation":
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self._visit(child)

    def _change(self, node: ast.AST) -> ast.AST | None:
        changed = copy.deepcopy(node)
        if isinstance(changed, ast.Compare):
            operator = _other(changed.ops[0])
            if operator is None:
                return None
            changed.ops[0] = operator  # type: ignore[call-overload]
            return changed
        if isinstance(changed, ast.BoolOp | ast.BinOp | ast.AugAssign):
            operator = _other(changed.op)
            if operator is None:
                return None
            changed.op = operator  # type: ignore[assignment]
            return changed
        if isinstance(changed, ast.Constant) and isinstance(changed.value, bool):
            return ast.Constant(not changed.value)
        if isinstance(changed, ast.Constant) and isinstance(changed.value, int):
            return ast.Constant(changed.value + 1)
        if isinstance(changed, ast.UnaryOp) and isinstance(changed.op, ast.Not):
            return changed.operand
        return None


class _Both(ast.NodeTransformer):
    """Puts a choice between both forms at the chosen places."""

    def __init__(self, chosen: dict[int, tuple[Change, int]]) -> None:
        self._chosen = chosen

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace a chosen place, and the places in it."""
        found = self._chosen.get(id(node))
        self.generic_visit(node)
        if found is None:
            return node
        place, number = found
        test = ast.parse(f"_mutant({number})", mode="eval").body
        if isinstance(node, ast.Expr):
            return ast.If(ast.UnaryOp(ast.Not(), test), [node], [])
        if isinstance(node, ast.stmt):
            return ast.If(test, [place.changed], [node])  # type: ignore[list-item]
        return ast.IfExp(test, place.changed, node)  # type: ignore[arg-type]
