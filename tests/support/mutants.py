"""Mutants: every small change of a module that a test ought to notice, from its syntax tree.

Left alone is what no test should read (docstrings, annotations, messages, asserts, imports, decorators), and constants
other than whole numbers and truth values.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARED: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}  # fmt: skip
SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}  # fmt: skip
_PAIRS = [("min", "max"), ("amin", "amax"), ("argmin", "argmax"), ("any", "all"), ("ceil", "floor")]
RENAMED = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
UNREAD = (ast.Import, ast.ImportFrom, ast.Assert, ast.JoinedStr)
UNREAD_FIELDS = ("annotation", "returns", "decorator_list")


def changed(node: ast.AST, **fields: Any) -> Any:
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def variants(node: Any) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    yes, no = ast.Constant(True), ast.Constant(False)
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                for other in COMPARED[type(op)]:
                    yield changed(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])
        case ast.BinOp(right=ast.Constant(value=str()) | ast.JoinedStr()):
            pass  # a path or a text: another operator would be a type error, and prove nothing
        case ast.BinOp() if type(node.op) in SWAPPED:
            yield changed(node, op=SWAPPED[type(node.op)]())
        case ast.AugAssign():
            yield from (changed(node, op=SWAPPED[type(node.op)]()), ast.Pass())
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.BoolOp():
            yield changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield no if node.value else yes
        case ast.Constant(value=int()):
            yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
        case ast.Constant(value=str(word)) | ast.Name(id=word) | ast.Attribute(attr=word) if word in RENAMED:
            yield changed(node, **{{"Constant": "value", "Name": "id"}.get(type(node).__name__, "attr"): RENAMED[word]})
        case ast.Call():
            for dropped in node.keywords:
                yield changed(node, keywords=[one for one in node.keywords if one is not dropped])
        case ast.If() | ast.IfExp():
            yield from (changed(node, test=yes), changed(node, test=no))
        case ast.While():
            yield changed(node, test=no)
        case ast.comprehension(ifs=[_, *_]):
            yield changed(node, ifs=[])


@dataclass(frozen=True)
class Mutant:
    """``text`` is the changed line as it was, ``change`` the expression or statement before and after.

    Of changes that read the same on one line, all but the first are numbered.
    """

    module: str
    line: int
    text: str
    change: str
    source: str


def code(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, Any]]:
    """Every node of what is decided at run time, and where it hangs: its holder, the field, the place in a list."""
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            read = isinstance(child, ast.AST) and not isinstance(child, UNREAD) and field not in UNREAD_FIELDS
            if read and not ast.unparse(child).startswith(("if TYPE_CHECKING:", "__all__ =")):
                yield node, field, index, child
                yield from code(child)


def mutants(module: str, text: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its code."""
    tree, lines, found, line = ast.parse(text), text.splitlines(), [], 0
    for holder, field, index, node in code(tree):
        line, old = getattr(node, "lineno", line), getattr(holder, field)
        shown = holder if isinstance(node, ast.Constant | ast.Name) else node
        for other in variants(node):
            before = _head(shown)
            setattr(holder, field, other if index is None else [*old[:index], other, *old[index + 1 :]])
            after = _head(other if shown is node else shown)
            change = f"{before}  ->  {after}"
            same = sum(one.line == line and one.change.partition("  #")[0] == change for one in found)
            change += f"  #{same + 1}" * (same > 0)
            found.append(Mutant(module, line, lines[line - 1].strip(), change, ast.unparse(tree)))
            setattr(holder, field, old)
    return found


def _head(node: ast.AST) -> str:
    return ast.unparse(node).strip().splitlines()[0]
