"""The small faults that the sampler puts into a source file, one at a time."""

import ast
import copy
from dataclasses import dataclass
from functools import partial

SWAPS = {
    ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div], ast.Div: [ast.Mult], ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.FloorDiv], ast.Pow: [ast.Mult], ast.BitAnd: [ast.BitOr], ast.BitOr: [ast.BitAnd],
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In], ast.And: [ast.Or], ast.Or: [ast.And],
}  # fmt: skip
DROPPED = {ast.Add: ("left", "right"), ast.Sub: ("left",), ast.Mult: ("left", "right"), ast.Div: ("left",)}
CALLS = {"min": "max", "minimum": "maximum", "floor": "ceil", "any": "all"}
CALLS |= {after: before for before, after in CALLS.items()}
ROUNDINGS = {"ceil", "floor", "round", "abs"}
# A mutant of these is no fault, or one that no caller can see: how an object prints, how much is cached.
SKIPPED_KEYWORDS = {
    "strict",
    "repr",
    "compare",
    "slots",
    "kw_only",
    "frozen",
    "dtype",
    "maxsize",
    "stacklevel",
}
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params"}
SKIPPED_NODES = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
TINY = 1e-6  # a constant below it is a tolerance: a last digit, not a fact


@dataclass(frozen=True)
class Mutant:
    """One fault: the n-th of its file, the lines it can be seen on, and how it reads."""

    path: str
    number: int
    line: int
    lines: frozenset[int]
    names: frozenset[str]  # what a statement outside all functions defines; empty within one
    text: str


def mutants(path, source):
    """Yield every fault that this file can be given."""
    for number, (node, new, _, (statement, inside)) in enumerate(_faults(ast.parse(source))):
        first = min([d.lineno for d in getattr(statement, "decorator_list", ())], default=statement.lineno)
        lines = {first, *range(node.lineno, node.end_lineno + 1)}
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        names = () if inside else {n.id for n in targets if isinstance(n, ast.Name)}
        before, after = (" ".join(ast.unparse(n).split()) for n in (node, new))
        yield Mutant(path, number, node.lineno, frozenset(lines), frozenset(names), f"{before}  ->  {after}")


def with_fault(source, number):
    """Return the tree of a file with its n-th fault in it."""
    tree = ast.parse(source)
    for n, (_, new, put, _) in enumerate(_faults(tree)):
        if n == number:
            put(new)
            return ast.fix_missing_locations(tree)
    raise IndexError(number)


def _faults(tree):
    for node, put, around in _nodes(tree, (tree, False)):
        for new in _variants(node, around[1], put.args[-1] == "test"):
            yield node, ast.copy_location(new, node), put, around


def _nodes(parent, around):
    """Yield nodes below this one, what puts another in their place, their statement and whether in a function."""
    for field, value in ast.iter_fields(parent):
        if field in SKIPPED_FIELDS:
            continue
        children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for at, node in children:
            if not isinstance(node, ast.AST) or _is_skipped(node):
                continue
            put = partial(setattr, parent, field) if at is None else partial(value.__setitem__, at)
            inside = around[1] or isinstance(parent, ast.FunctionDef)
            here = (node, inside) if isinstance(node, ast.stmt) else (around[0], inside)
            if hasattr(node, "lineno"):
                yield node, put, here
            yield from _nodes(node, here)


def _is_skipped(node):
    if isinstance(node, ast.keyword) and node.arg in SKIPPED_KEYWORDS:
        return True
    if isinstance(node, ast.Assign) and any(getattr(t, "id", "").startswith("__") for t in node.targets):
        return True
    words = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    checked = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    return words or checked or isinstance(node, SKIPPED_NODES)


def _variants(node, inside, is_test):
    """Yield what may stand in the place of a node."""
    if is_test and isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
        yield ast.UnaryOp(ast.Not(), copy.deepcopy(node))
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            if any(isinstance(n, (ast.JoinedStr, ast.List, ast.Tuple)) or _is_text(n) for n in (left, right)):
                return
            if isinstance(op, ast.BitOr) and not inside:
                return  # a union of types
            yield from (_with(node, op=new()) for new in SWAPS.get(type(op), ()))
            yield from (copy.deepcopy(getattr(node, side)) for side in DROPPED.get(type(op), ()))
        case ast.AugAssign(op=op):
            yield from (_with(node, op=new()) for new in SWAPS.get(type(op), ()))
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                yield from (_with(node, ops=[*ops[:at], new(), *ops[at + 1 :]]) for new in SWAPS[type(op)])
        case ast.BoolOp(op=op):
            yield _with(node, op=SWAPS[type(op)][0]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield copy.deepcopy(operand)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value) if abs(value) >= TINY or value == 0:
            yield from (ast.Constant(new) for new in sorted({value + 1, value - 1, value * 2} - {value}))
        case ast.IfExp(body=body, orelse=orelse):
            yield _with(node, body=orelse, orelse=body)
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Call(func=func, args=args):
            yield from _calls(node, func, args)


def _calls(node, func, args):
    name = getattr(func, "attr", getattr(func, "id", ""))
    if name in CALLS and args:
        other = CALLS[name]
        new = _with(func, attr=other) if isinstance(func, ast.Attribute) else ast.Name(other, ast.Load())
        yield _with(node, func=new)
    if name == "where" and len(args) == 3:
        yield _with(node, args=[args[0], args[2], args[1]])
    if name in ROUNDINGS and args:
        yield copy.deepcopy(args[0])


def _with(node, **fields):
    new = copy.deepcopy(node)
    for field, value in fields.items():
        setattr(new, field, copy.deepcopy(value))
    return new


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
