"""Small errors in Python source, as people make them: which ones there are, and where a file has room for them.

A mutant replaces one piece of the text of a file. Left alone are documentation, annotations, imports, decorators,
assertions, errors that are raised, and methods called `check`, which only refuse options.
"""

import ast
import copy
from collections.abc import Iterable, Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

OPERATORS: dict[type, type] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod},
    **{ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr},
    **{ast.RShift: ast.LShift, ast.LShift: ast.RShift, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
_EXCHANGED = [
    *(("minimum", "maximum"), ("min", "max"), ("argmin", "argmax"), ("any", "all"), ("mean", "sum"), ("sin", "cos")),
    *(("ones", "zeros"), ("ones_like", "zeros_like"), ("add", "subtract")),
]
FUNCTIONS = {"std": "var"} | {a: b for pair in _EXCHANGED for a, b in (pair, pair[::-1])}
"""Functions of jnp, np, jax.nn and optax.tree, by the function that is called instead."""
BUILTINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
WRAPPERS = {
    *("stop_gradient", "clip", "sqrt", "abs", "exp", "log", "expm1", "relu", "silu", "tanh"),
    *("_to_norm", "raw", "seen", "compact"),
}
"""Functions whose call is replaced by its first argument."""
ALIKE = {"polyak": (0, 1), "where": (1, 2), "incremental_update": (0, 1), "select": (1, 2)}
"""Functions with two arguments of the same kind, which may be exchanged whatever they are called."""
_CONFUSED = [
    *(("critics", "targets"), ("std_mean", "var_mean"), ("y_q", "y_z"), ("mean", "std"), ("fixed", "std")),
    *(("obs", "next_obs"), ("reward", "discount"), ("real", "synthetic"), ("before", "after"), ("model", "ema")),
    *(("actor_lr", "alpha_lr"), ("critic_lr", "critic_lr_end"), ("anneal_from", "anneal_to"), ("hold", "total")),
    *(("sigma_min", "sigma_max"), ("churn_low", "churn_high"), ("low", "high"), ("width", "dim_t"), ("bound", "scale")),
    *(("bound_factor", "std_eps"), ("b1", "b2"), ("m", "v"), ("eta", "beta"), ("skip", "out"), ("into", "noise")),
    *(("sigma", "lower"), ("slope", "slope_after"), ("x", "euler"), ("clean", "ahead"), ("clean", "previous")),
    *(("alphas", "betas"), ("bars", "earlier"), ("kicked", "mixed"), ("inner", "outer"), ("log_mean", "log_std")),
    *(("real_error", "synthetic_error"), ("energies", "betas"), ("obs_dim", "action_dim"), ("clip_at", "bias_factor")),
    *(("beta_min", "beta_max"), ("start", "stop")),
]
CONFUSED = {frozenset(pair) for pair in _CONFUSED}
"""Names that are taken for one another where both are at hand."""
CONFUSED_FIELDS = CONFUSED | {frozenset(("actor", "target_actor"))}
UNTOUCHED = (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert, ast.JoinedStr)
ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript, ast.Tuple, ast.List)
SHOWN = 60
"""Characters of a piece of source in a description."""


class Mutant(NamedTuple):
    """One error: the bytes from `start` to `stop` of a file are replaced by `text`."""

    path: str
    line: int
    column: int
    kind: str
    before: str
    after: str
    start: int
    stop: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.column} {self.kind}"

    def __str__(self) -> str:
        return f"{self.name}: {self.before} → {self.after}"

    def source(self, original: bytes) -> bytes:
        return original[: self.start] + self.text.encode() + original[self.stop :]


def mutants_of(path: Path, shown_as: str, fields: list[set[str]]) -> list[Mutant]:
    """All mutants of a file in the order of its text, without those that are the same program.

    `fields` are the names of the fields of each class, for attributes that are taken for one another.
    """
    source = path.read_bytes()
    finder = _Finder(source, shown_as, fields)
    finder.visit(ast.parse(source))
    seen, kept = {ast.dump(ast.parse(source))}, []
    for mutant in sorted(finder.found, key=lambda m: (m.start, m.stop, m.kind, m.text)):
        program = ast.dump(ast.parse(mutant.source(source)))
        if program not in seen:
            seen.add(program)
            again = sum(m.name.split(" #")[0] == mutant.name for m in kept)
            kept.append(mutant._replace(kind=f"{mutant.kind} #{again + 1}") if again else mutant)
    return kept


def fields_of(paths: Iterable[Path]) -> list[set[str]]:
    """The annotated fields of every class in these files."""
    classes = [node for p in paths for node in ast.walk(ast.parse(p.read_bytes())) if isinstance(node, ast.ClassDef)]
    return [
        {x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)}
        for node in classes
    ]


def _around_the_change(before: str, after: str) -> tuple[str, str]:
    """Both texts, cut down to what differs and a little on either side of it."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    start = max(same - SHOWN // 3, 0)
    cut = [
        f"{'…' if start else ''}{x[start : start + SHOWN]}{'…' if len(x) > start + SHOWN else ''}"
        for x in (before, after)
    ]
    return cut[0], cut[1]


def _tail(node: ast.AST) -> str:
    """`b` of the name b and of the attribute a.b"""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _names(node: ast.AST, context: type) -> list[ast.Name]:
    """Names that are read (`ast.Load`) or assigned (`ast.Store`), the last one first."""
    found = [x for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, context)]
    return sorted(found, key=lambda x: -x.lineno)


def _changed(node: Any, **fields: Any) -> Any:
    """A copy of the node with other fields."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _exchanged(items: list, i: int, j: int) -> list:
    items = list(items)
    items[i], items[j] = items[j], items[i]
    return items


class _Finder(ast.NodeVisitor):
    def __init__(self, source: bytes, path: str, fields: list[set[str]]):
        self.path, self.fields = path, fields
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.scopes: list[dict[str, int]] = []
        """of the functions around: where each name is first assigned"""
        self.statement = 0
        self.found: list[Mutant] = []

    def add(
        self,
        kind: str,
        node: Any,
        new: ast.AST | str,
        shown: tuple[str, str] | None = None,
        place: tuple[int, int] | None = None,
    ) -> None:
        """A mutant that has `new` in the place of the node.

        `shown` are the words before and after, `place` the line and column to report, if not those of the node.
        """
        if isinstance(new, str):
            text = after = new
        else:
            after = ast.unparse(new)
            text = after if isinstance(new, ATOMS) else f"({after})"
        before, after = shown or (ast.unparse(node), after)
        start = self.starts[node.lineno - 1] + node.col_offset
        stop = self.starts[node.end_lineno - 1] + node.end_col_offset
        line, column = place or (node.lineno, node.col_offset)
        words = _around_the_change(before, after)
        self.found.append(Mutant(self.path, line, column, kind, *words, start, stop, text))

    def at_hand(self, name: str) -> bool:
        """Whether a statement before this one, or an argument, has that name."""
        return any(scope.get(name, self.statement) < self.statement for scope in self.scopes)

    # What is left alone, and what belongs to a scope

    def visit(self, node: ast.AST) -> None:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt):
            self.statement = node.lineno
        if not isinstance(node, UNTOUCHED) and not docstring:
            super().visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name == "check":
            return
        self.within(node, node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.within(node, [node.body])

    def within(self, node: ast.FunctionDef | ast.Lambda, body: list) -> None:
        args = node.args
        for default in (*args.defaults, *(x for x in args.kw_defaults if x)):
            self.visit(default)
        names = {x.id: x.lineno for part in body for x in _names(part, ast.Store)}
        names |= {x.arg: 0 for x in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
        self.scopes.append(names)
        for statement in body:
            self.visit(statement)
        self.scopes.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value and "TypeAlias" not in ast.unparse(node.annotation):
            self.visit(node.value)

    # Statements

    def visit_Assign(self, node: ast.Assign) -> None:
        target, value = node.targets[0], node.value
        stored, loaded = ({x.id for x in _names(*x)} for x in ((target, ast.Store), (value, ast.Load)))
        if stored and stored <= loaded:
            self.add("statement dropped", node, "pass")
        if isinstance(target, ast.Tuple) and all(isinstance(x, ast.Name) for x in target.elts):
            names = [_tail(x) for x in target.elts]
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "jax.random.split":
                for one, other in pairwise(names):
                    again = f"{other} = {one}"
                    shown = f"{other} of its own", again
                    self.add("key reused", node, f"{ast.unparse(node)}; {again}", shown)
            elif not isinstance(value, ast.Tuple):
                for i, pair in enumerate(pairwise(names)):
                    if frozenset(pair) in CONFUSED:
                        self.add("targets exchanged", target, _changed(target, elts=_exchanged(target.elts, i, i + 1)))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("operator", node, ast.unparse(_changed(node, op=OPERATORS[type(node.op)]())))
        self.add("statement dropped", node, "pass")
        self.visit(node.value)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        condition = ast.unparse(node.test)
        for always in ("True", "False"):
            self.add(f"if {always}", node.test, always, (f"if {condition}", f"if {always}"))
        self.generic_visit(node)

    visit_IfExp = visit_If

    # Expressions

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS:
            place = node.left.end_lineno, node.left.end_col_offset  # one that no other operator has
            self.add("operator", node, _changed(node, op=OPERATORS[type(node.op)]()), place=place)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.add("operator", node, _changed(node, op=OPERATORS[type(node.op)]()))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self.add("comparison", node, _changed(node, ops=[OPERATORS[type(node.ops[0])](), *node.ops[1:]]))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.add("not dropped" if isinstance(node.op, ast.Not) else "sign dropped", node, node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        for value in _other_constants(node.value):
            self.add("constant", node, ast.Constant(value))

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            for other in _partners(node.id, CONFUSED):
                if self.at_hand(node.id) and self.at_hand(other):
                    self.add("name", node, ast.Name(other))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if ast.unparse(node.value) in ("jnp", "np", "jax.nn", "optax.tree"):
            if node.attr in FUNCTIONS:
                self.add("function", node, _changed(node, attr=FUNCTIONS[node.attr]))
        elif isinstance(node.value, ast.Name | ast.Attribute):
            for other in _partners(node.attr, CONFUSED_FIELDS):
                if any({node.attr, other} <= names for names in self.fields):
                    self.add("attribute", node, _changed(node, attr=other))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name, args, keywords = _tail(node.func), node.args, node.keywords
        if name in WRAPPERS and args:
            self.add("call dropped", node, args[0])
        if isinstance(node.func, ast.Name) and name in BUILTINS:
            self.add("function", node.func, BUILTINS[name])
        if name == "_replace":
            for i in range(len(keywords)):
                new = _changed(node, keywords=keywords[:i] + keywords[i + 1 :])
                self.add(
                    "field left", node, new, (f"_replace({keywords[i].arg}=…)", f"{keywords[i].arg} left as it was")
                )
        for i, pair in enumerate(pairwise(args)):
            if (i, i + 1) == ALIKE.get(name) or frozenset(map(_tail, pair)) in CONFUSED:
                self.add("arguments exchanged", node, _changed(node, args=_exchanged(args, i, i + 1)))
        for i, one in enumerate(keywords):
            for j, other in enumerate(keywords[:i]):
                if frozenset((one.arg, other.arg)) in CONFUSED_FIELDS:
                    values = {i: _changed(one, value=other.value), j: _changed(other, value=one.value)}
                    new = _changed(node, keywords=[values.get(k, x) for k, x in enumerate(keywords)])
                    shown = f"{other.arg}=…, {one.arg}=…", "exchanged"
                    self.add("arguments exchanged", node, new, shown)
        if isinstance(node.func, ast.Attribute):  # a method is no field that could be taken for another
            if ast.unparse(node.func.value) in ("jnp", "np", "jax.nn", "optax.tree"):
                self.visit(node.func)
            else:
                self.visit(node.func.value)
        for argument in (*args, *(x.value for x in keywords)):
            self.visit(argument)


def _other_constants(value: Any) -> Iterator[Any]:
    """0 ↔ 1, True ↔ False, and twice any other number, or half of what would become more than 1."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        if value == 0 or (value == 1 and isinstance(value, int)):
            yield type(value)(1 - value)
        elif 0.5 < value < 1:
            yield value / 2
        else:
            yield 2 * value if value < 2**24 else value ^ 2  # a word of 32 bits stays one


def _partners(name: str, pairs: set[frozenset[str]]) -> list[str]:
    return sorted(other for pair in pairs if name in pair for other in pair - {name})
