"""Runs a function that is written in JAX with NumPy, step by step, if it is made of the few operations listed here.

A compiled call costs more than the network of a policy: its dispatch takes as long as the products, and displaces the
simulator from the processor's caches, so that the next step of the simulator is slower too. Here, random numbers are
drawn for many steps in one compiled call, and the rest runs in NumPy. It is derived from the function itself, so that
an agent has one definition of how it acts.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

POLICY, DRAWN, LATE = 1, 2, 4
"""What a value depends on, as a sum: the policy, what random numbers are drawn from, the arguments of a step."""

Compute = Callable[..., Any]
Step = Callable[[list[np.ndarray], Any], Any]
"""what was drawn for the step, the arguments of the step → the result of the function"""


class Unsupported(Exception):
    """The function contains an operation that is not listed here."""


class Operation(NamedTuple):
    compute: Compute
    inputs: list[int]
    """places of the arguments"""
    outputs: list[int]
    """places of the results"""


ELEMENTWISE: dict[str, Compute] = {
    "abs": np.abs,
    "add": np.add,
    "div": np.divide,
    "exp": np.exp,
    "expm1": np.expm1,
    "gt": np.greater,
    "log1p": np.log1p,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "tanh": np.tanh,
}


def _aval(x: Any) -> Any:
    """Shape and dtype of an argument or result of an operation."""
    return x.aval


def _dot_general(eqn: JaxprEqn) -> Compute:
    """[E, n] · [m, n] → [E, m], the product of a layer; or with the weights as [n, m]."""
    left, right = map(_aval, eqn.invars)
    ((of_left,), (of_right,)), batch = eqn.params["dimension_numbers"]
    if batch != ((), ()) or (left.ndim, right.ndim, of_left) != (2, 2, 1):
        raise Unsupported("dot_general of other axes")
    return np.matmul if of_right == 0 else lambda x, weight: np.matmul(x, weight.T)


def _integer_pow(eqn: JaxprEqn) -> Compute:
    power = eqn.params["y"]
    if power not in (2, 3):
        raise Unsupported(f"power {power}")
    return np.square if power == 2 else lambda x: x * x * x  # much faster than np.power


def _split(eqn: JaxprEqn) -> Compute:
    stops, axis = np.cumsum(eqn.params["sizes"]), eqn.params["axis"]
    lead = (slice(None),) * axis
    parts = [(*lead, slice(stop - size, stop)) for stop, size in zip(stops, eqn.params["sizes"], strict=True)]
    return lambda x: [x[part] for part in parts]


def _select_n(eqn: JaxprEqn) -> Compute:
    if len(eqn.invars) != 3 or _aval(eqn.invars[0]).dtype != bool:
        raise Unsupported("select_n of more than two cases")
    return lambda which, if_false, if_true: np.where(which, if_true, if_false)


def _reduce_sum(eqn: JaxprEqn) -> Compute:
    axes = tuple(eqn.params["axes"])
    return lambda x: np.add.reduce(x, axes)


def _convert(eqn: JaxprEqn) -> Compute:
    dtype = _aval(eqn.outvars[0]).dtype
    return lambda x: np.asarray(x, dtype)


def _broadcast_in_dim(eqn: JaxprEqn) -> Compute:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    sizes = dict(zip(axes, _aval(eqn.invars[0]).shape, strict=True))
    aligned = [sizes.get(axis, 1) for axis in range(len(shape))]
    return lambda x: np.broadcast_to(x.reshape(aligned), shape)


def _concatenate(eqn: JaxprEqn) -> Compute:
    axis = eqn.params["dimension"]
    return lambda *parts: np.concatenate(parts, axis)


STRUCTURED: dict[str, Callable[[JaxprEqn], Compute]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "convert_element_type": _convert,
    "dot_general": _dot_general,
    "integer_pow": _integer_pow,
    "reduce_sum": _reduce_sum,
    "select_n": _select_n,
    "split": _split,
}


def _in_numpy(eqn: JaxprEqn) -> Compute:
    name = eqn.primitive.name
    if any(_aval(x).dtype not in (np.float32, np.bool_) for x in (*eqn.invars, *eqn.outvars)):
        raise Unsupported(f"{name} of other numbers than float32")
    if name in STRUCTURED:
        return STRUCTURED[name](eqn)
    if name not in ELEMENTWISE:
        raise Unsupported(name)
    return ELEMENTWISE[name]


CALLS = ("jit", "pjit", "custom_jvp_call", "custom_vjp_call", "remat2", "remat", "checkpoint")
"""Operations that only call a function; the last three are names of `jax.checkpoint`."""


def body_of(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """The function that an operation only calls, as `jit` does; None for any other operation."""
    if eqn.primitive.name not in CALLS:
        return None
    body = next(x for x in eqn.params.values() if isinstance(x, ClosedJaxpr | Jaxpr))
    return body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())


class InNumpy:
    """A function (policy, source, late) → result, all of them trees of arrays; a result is of NumPy arrays.

    What depends on `source` alone is compiled, and drawn for many sources at once. Raises `Unsupported` if the rest
    cannot run in NumPy.
    """

    def __init__(self, function: Callable[..., Any], policy: Any, source: Any, late: Any):
        """The arguments are examples, or shapes and dtypes."""
        closed, result = jax.make_jaxpr(function, return_shape=True)(policy, source, late)
        self._result = jax.tree.structure(result)
        self._depends: list[int] = []  # of every place
        self._constants: dict[int, Any] = {}
        self._compiled: list[tuple[JaxprEqn, list[int], list[int]]] = []
        self._once: list[Operation] = []  # of the policy alone
        self._steps: list[Operation] = []
        given = ((POLICY, policy), (DRAWN, source), (LATE, late))
        self._policy, self._source, self._late = ([self._new(on) for _ in jax.tree.leaves(x)] for on, x in given)
        self._outputs = self._walk(closed.jaxpr, closed.consts, self._policy + self._source + self._late)
        self._steps = _needed(self._steps, self._outputs)
        self._once = _needed(self._once, _inputs(self._steps) | set(self._outputs))
        used = _inputs(self._steps) | _inputs(self._once) | set(self._outputs)
        made = {place for _, _, outputs in self._compiled for place in outputs}
        self._drawn = sorted((made & used) - {place for operation in self._once for place in operation.outputs})
        self._draw: Any = jax.jit(jax.vmap(self._values))

    def _new(self, depends: int) -> int:
        self._depends.append(depends)
        return len(self._depends) - 1

    def _constant(self, value: Any) -> int:
        place = self._new(0)
        self._constants[place] = value
        return place

    def _walk(self, jaxpr: Jaxpr, constants: Sequence[Any], inputs: list[int]) -> list[int]:
        """Adds all operations to their lists; returns the places of the results."""
        places = dict(zip(jaxpr.invars, inputs, strict=True))
        places |= {x: self._constant(value) for x, value in zip(jaxpr.constvars, constants, strict=True)}

        def place_of(x: Any) -> int:
            return self._constant(x.val) if isinstance(x, Literal) else places[x]

        for eqn in jaxpr.eqns:
            arguments = [place_of(x) for x in eqn.invars]
            if (body := body_of(eqn)) is not None:
                results = self._walk(body.jaxpr, body.consts, arguments)
            else:
                results = self._add(eqn, arguments)
            places |= dict(zip(eqn.outvars, results, strict=True))
        return [place_of(x) for x in jaxpr.outvars]

    def _add(self, eqn: JaxprEqn, arguments: list[int]) -> list[int]:
        depends = functools.reduce(operator.or_, (self._depends[i] for i in arguments), 0)
        compute = None
        if depends == 0:
            with contextlib.suppress(Unsupported):
                compute = _in_numpy(eqn)
            depends = 0 if compute else DRAWN
        elif depends != DRAWN:
            compute = _in_numpy(eqn)
        results = [self._new(depends) for _ in eqn.outvars]
        if depends in (0, DRAWN):
            self._compiled.append((eqn, arguments, results))
        if compute is not None:
            operations = self._once if depends in (0, POLICY) else self._steps
            operations.append(Operation(compute, arguments, results))
        return results

    def _values(self, source: Any) -> list[Any]:
        values = dict(self._constants)
        values |= zip(self._source, jax.tree.leaves(source), strict=True)
        for eqn, inputs, outputs in self._compiled:
            found = eqn.primitive.bind(*(values[i] for i in inputs), **eqn.params)
            values |= zip(outputs, found if eqn.primitive.multiple_results else [found], strict=True)
        return [values[i] for i in self._drawn]

    def draw(self, sources: Any) -> list[np.ndarray]:
        """What steps need of several sources, whose arrays have a leading axis T, as arrays [T, …]."""
        return [np.asarray(x) for x in self._draw(sources)] if self._drawn else []

    def step(self, policy: Any) -> Step:
        """The function for a policy, whose arrays must not change."""
        values: list[Any] = [None] * len(self._depends)
        for place, value in (*self._constants.items(), *zip(self._policy, jax.tree.leaves(policy), strict=True)):
            values[place] = np.asarray(value)
        _run(self._once, values)

        def step(drawn: list[np.ndarray], late: Any) -> Any:
            for place, value in zip(self._drawn, drawn, strict=True):
                values[place] = value
            for place, value in zip(self._late, jax.tree.leaves(late), strict=True):
                values[place] = np.array(value)  # a copy: the caller may write to its own, and results may be views
            _run(self._steps, values)
            return jax.tree.unflatten(self._result, [values[i] for i in self._outputs])

        return step


def _run(operations: list[Operation], values: list[Any]) -> None:
    for compute, inputs, outputs in operations:
        found = compute(*[values[i] for i in inputs])
        if len(outputs) == 1:
            values[outputs[0]] = found
        else:
            for place, value in zip(outputs, found, strict=True):
                values[place] = value


def _inputs(operations: list[Operation]) -> set[int]:
    return {place for operation in operations for place in operation.inputs}


def _needed(operations: list[Operation], outputs: Iterable[int]) -> list[Operation]:
    """The operations on which the outputs depend."""
    needed, kept = set(outputs), []
    for operation in reversed(operations):
        if needed.intersection(operation.outputs):
            kept.append(operation)
            needed.update(operation.inputs)
    return kept[::-1]
