"""Writes a function of a batch of observations, which is written in JAX, as an ONNX graph. An observation is a float32
vector, a uint8 image, or both.

The graph is derived from the function itself, so that an agent has one definition of how it acts. What does not depend
on the observations, such as transposed weights or the noise levels of a diffusion, is computed here and stored as a
constant. Loops of known length are unrolled. The size of the batch stays open.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from lsac.collect.in_numpy import Unsupported, body_of

OPSET = 17
"""Version of the ONNX operators; runtimes since 2022 have them."""
IR_VERSION = 8
"""Version of the file format that belongs to it."""
INPUT, IMAGE, OUTPUT, BATCH = "observation", "image", "action", "batch"

ELEMENTWISE = {
    "abs": "Abs",
    "add": "Add",
    "div": "Div",
    "exp": "Exp",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "le": "LessOrEqual",
    "log": "Log",
    "logistic": "Sigmoid",
    "lt": "Less",
    "max": "Max",
    "min": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "tanh": "Tanh",
}
"""Operations of JAX that have one of ONNX of the same meaning."""
SAME = {"convert_element_type", "copy", "stop_gradient"}
"""Operations that leave numbers as they are, unless they change the dtype."""


class Value(NamedTuple):
    """A constant, or the result of a node by its name.

    Its true shape may have a 1 where JAX has a longer axis: ONNX repeats such an axis where two arrays meet."""

    constant: Any
    name: str
    shape: tuple[Any, ...]


def symbolic(shape: Sequence[Any]) -> bool:
    """Whether a shape contains the open size of the batch."""
    return not all(isinstance(size, (int, np.integer)) for size in shape)


def write_graph(
    function: Callable[[dict[str, Any]], Any], rows: dict[str, jax.ShapeDtypeStruct]
) -> tuple[Any, tuple[int, ...]]:
    """The ONNX graph of a function of named batches, whose rows have these shapes and dtypes, and the shape of a row of
    its result.

    Raises `Unsupported` if the function contains an operation that is not listed here."""
    from onnx import TensorProto, helper

    (batch,) = jax.export.symbolic_shape(BATCH)
    given = {name: jax.ShapeDtypeStruct((batch, *x.shape), x.dtype) for name, x in sorted(rows.items())}
    closed, result = jax.make_jaxpr(function, return_shape=True)(given)
    writer = Writer(next(iter(given)))
    (value,) = writer.walk(closed.jaxpr, closed.consts, [Value(None, name, x.shape) for name, x in given.items()])
    last = writer.whole(value, result.shape)
    writer.node("Identity", [last], result.shape, OUTPUT)
    nodes = _needed(writer.nodes)
    used = {name for node in nodes for name in node.input}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype)), [BATCH, *x.shape[1:]])
        for name, x in given.items()
    ]
    graph = helper.make_graph(
        nodes,
        "policy",
        inputs,
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [BATCH, *result.shape[1:]])],
        [tensor for tensor in writer.constants.values() if tensor.name in used],
    )
    return graph, tuple(result.shape[1:])


def _needed(nodes: list[Any]) -> list[Any]:
    """The nodes on which the result depends."""
    needed, kept = {OUTPUT}, []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    return kept[::-1]


class Writer:
    """Collects the nodes and constants of a graph. The size of the batch is that of the named input."""

    def __init__(self, sized: str) -> None:
        self._sized = sized
        self.nodes: list[Any] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], Any] = {}
        self._count = 0

    def walk(self, jaxpr: Jaxpr, constants: Sequence[Any], inputs: list[Value]) -> list[Value]:
        """Adds the nodes of all operations; returns the results."""
        values = dict(zip(jaxpr.invars, inputs, strict=True))
        values |= {x: _constant(value) for x, value in zip(jaxpr.constvars, constants, strict=True)}

        def value_of(x: Any) -> Value:
            return _constant(x.val) if isinstance(x, Literal) else values[x]

        for eqn in jaxpr.eqns:
            given = [value_of(x) for x in eqn.invars]
            if (body := body_of(eqn)) is not None:
                results = self.walk(body.jaxpr, body.consts, given)
            elif eqn.primitive.name == "scan":
                results = self._unrolled(eqn, given)
            else:
                results = self._result(eqn, given)
            values |= dict(zip(eqn.outvars, results, strict=True))
        return [value_of(x) for x in jaxpr.outvars]

    def _result(self, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
        shapes = [_shape(x) for x in (*eqn.invars, *eqn.outvars)]
        if all(x.constant is not None for x in given) and not any(map(symbolic, shapes)):
            found = eqn.primitive.bind(*(x.constant for x in given), **eqn.params)
            return [_constant(x) for x in (found if eqn.primitive.multiple_results else [found])]
        name = eqn.primitive.name
        if name == "convert_element_type" and (_dtype(eqn.invars[0]), _dtype(eqn.outvars[0])) == (np.uint8, np.float32):
            return [self.node("Cast", given, given[0].shape, to=1)]  # 1 is float32
        if any(_dtype(x) not in (np.float32, np.bool_) for x in (*eqn.invars, *eqn.outvars)):
            raise Unsupported(f"{name} of other numbers than float32")
        if name in SAME and _dtype(eqn.invars[0]) == _dtype(eqn.outvars[0]):
            return given
        if name in ELEMENTWISE:
            return [self._elementwise(ELEMENTWISE[name], given)]
        if name not in STRUCTURED:
            raise Unsupported(name)
        return STRUCTURED[name](self, eqn, given)

    def _elementwise(self, kind: str, given: list[Value]) -> Value:
        shape = _broadcast([x.shape for x in given])
        others = [x for x in given if not _is_zero(x)]
        if kind == "Max" and len(others) == 1:
            return self.node("Relu", others, shape)
        return self.node(kind, given, shape)

    def node(self, kind: str, given: list[Value], shape: Sequence[Any], name: str = "", **attributes: Any) -> Value:
        return self.nodes_of(kind, given, [shape], [name], **attributes)[0]

    def nodes_of(
        self, kind: str, given: list[Value], shapes: Sequence[Sequence[Any]], names: list[str], **attributes: Any
    ) -> list[Value]:
        """Adds a node with a result of each shape."""
        from onnx import helper

        outputs = [name or self._new(kind.lower()) for name in names]
        inputs = [x.name if x.constant is None else self._stored(np.asarray(x.constant)) for x in given]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes))
        return [Value(None, name, tuple(shape)) for name, shape in zip(outputs, shapes, strict=True)]

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    def _stored(self, array: np.ndarray) -> str:
        """The name of a constant; equal ones are stored once."""
        from onnx import numpy_helper

        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(
                np.ascontiguousarray(array), f"constant_{len(self.constants)}"
            )
        return str(self.constants[key].name)

    def whole(self, value: Value, shape: Sequence[Any]) -> Value:
        """A value with every axis as long as in JAX."""
        if value.shape == tuple(shape):
            return value
        if not symbolic(shape):
            return self.node("Expand", [value, _constant(np.array(shape, np.int64))], shape)
        lengths = self.node("Shape", [Value(None, self._sized, ())], (1,), start=0, end=1)
        rest = _constant(np.array([1 if symbolic([size]) else size for size in shape[1:]], np.int64))
        return self.node("Expand", [value, self.node("Concat", [lengths, rest], (len(shape),), axis=0)], shape)

    def _unrolled(self, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
        """A loop of known length, step by step. What it reads in each step must be constant."""
        params = eqn.params
        first, stop = params["num_consts"], params["num_consts"] + params["num_carry"]
        consts, carry, read = given[:first], given[first:stop], given[stop:]
        body: ClosedJaxpr = params["jaxpr"]
        if any(x.constant is None for x in read) or len(body.jaxpr.outvars) > params["num_carry"]:
            raise Unsupported("scan over what depends on the observation")
        steps = range(params["length"])
        for i in reversed(steps) if params["reverse"] else steps:
            now = [_constant(x.constant[i]) for x in read]
            carry = self.walk(body.jaxpr, body.consts, [*consts, *carry, *now])
        return carry


def _shape(x: Any) -> tuple[Any, ...]:
    return tuple(x.aval.shape)


def _dtype(x: Any) -> Any:
    return x.aval.dtype


def _constant(value: Any) -> Value:
    return Value(value, "", tuple(np.shape(value)))


def _is_zero(value: Value) -> bool:
    return value.constant is not None and value.shape == () and not value.constant


def _broadcast(shapes: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    axes = zip(*aligned, strict=True)
    return tuple(next((size for size in sizes if symbolic([size]) or size != 1), 1) for sizes in axes)


# operations with parameters


def _broadcast_in_dim(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    (value,), axes = given, [int(axis) for axis in eqn.params["broadcast_dimensions"]]
    rank = len(_shape(eqn.outvars[0]))
    sizes = dict(zip(axes, value.shape, strict=True))
    return [_reshaped(writer, value, [sizes.get(axis, 1) for axis in range(rank)])]


def _reshape(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    whole = writer.whole(given[0], _shape(eqn.invars[0]))
    return [_reshaped(writer, whole, _shape(eqn.outvars[0]))]


def _reshaped(writer: Writer, value: Value, shape: Sequence[Any]) -> Value:
    if value.shape == tuple(shape):
        return value
    sizes = np.array([-1 if symbolic([size]) else size for size in shape], np.int64)
    if value.constant is not None:
        return _constant(np.asarray(value.constant).reshape(sizes))
    return writer.node("Reshape", [value, _constant(sizes)], shape)


def _dot_general(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    """[B, …, n] · [m, n] → [B, …, m], the product of a layer; or with the weights as [n, m]."""
    left, right = given
    ((of_left,), (of_right,)), batch = eqn.params["dimension_numbers"]
    last = len(left.shape) - 1
    if batch != ((), ()) or last < 1 or (len(right.shape), of_left) != (2, last) or right.constant is None:
        raise Unsupported("dot_general of other axes")
    weight = np.asarray(right.constant)
    left = writer.whole(left, _shape(eqn.invars[0]))
    return [writer.node("MatMul", [left, _constant(weight if of_right == 0 else weight.T)], _shape(eqn.outvars[0]))]


def _integer_pow(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    (x,), power = given, eqn.params["y"]
    if power not in (2, 3):
        raise Unsupported(f"power {power}")
    square = writer.node("Mul", [x, x], x.shape)
    return [square if power == 2 else writer.node("Mul", [square, x], x.shape)]


def _square(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    return [writer.node("Mul", [given[0], given[0]], given[0].shape)]


def _rsqrt(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    (x,) = given
    return [writer.node("Reciprocal", [writer.node("Sqrt", [x], x.shape)], x.shape)]


def _expm1(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    (x,) = given
    return [writer.node("Sub", [writer.node("Exp", [x], x.shape), _constant(np.float32(1.0))], x.shape)]


def _select_n(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    if len(given) != 3 or _dtype(eqn.invars[0]) != np.bool_:
        raise Unsupported("select_n of more than two cases")
    which, if_false, if_true = given
    return [writer.node("Where", [which, if_true, if_false], _broadcast([x.shape for x in given]))]


def _reduce_sum(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    whole = writer.whole(given[0], _shape(eqn.invars[0]))
    axes = _constant(np.array(eqn.params["axes"], np.int64))
    return [writer.node("ReduceSum", [whole, axes], _shape(eqn.outvars[0]), keepdims=0)]


def _pad(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    """By nothing, as in convolutions without padding."""
    if any(map(any, eqn.params["padding_config"])):
        raise Unsupported("pad")
    return given[:1]


def _slice(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    """Of axes other than that of the batch."""
    starts, stops, strides = (eqn.params[name] for name in ("start_indices", "limit_indices", "strides"))
    shape = _shape(eqn.invars[0])
    axes = [axis for axis, size in enumerate(shape) if not symbolic([size])]
    steps = [1] * len(shape) if strides is None else strides
    if any(symbolic([size]) and (steps[axis] != 1 or starts[axis] != 0) for axis, size in enumerate(shape)):
        raise Unsupported("slice of the batch")
    numbers = [_constant(np.array([values[axis] for axis in axes], np.int64)) for values in (starts, stops)]
    more = [_constant(np.array(values, np.int64)) for values in (axes, [steps[axis] for axis in axes])]
    return [writer.node("Slice", [writer.whole(given[0], shape), *numbers, *more], _shape(eqn.outvars[0]))]


def _concatenate(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    parts = [writer.whole(value, _shape(x)) for value, x in zip(given, eqn.invars, strict=True)]
    return [writer.node("Concat", parts, _shape(eqn.outvars[0]), axis=eqn.params["dimension"])]


def _split(writer: Writer, eqn: JaxprEqn, given: list[Value]) -> list[Value]:
    whole = writer.whole(given[0], _shape(eqn.invars[0]))
    sizes = _constant(np.array(eqn.params["sizes"], np.int64))
    shapes = [_shape(x) for x in eqn.outvars]
    return writer.nodes_of("Split", [whole, sizes], shapes, [""] * len(shapes), axis=eqn.params["axis"])


STRUCTURED: dict[str, Callable[[Writer, JaxprEqn, list[Value]], list[Value]]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "dot_general": _dot_general,
    "expm1": _expm1,
    "integer_pow": _integer_pow,
    "pad": _pad,
    "reduce_sum": _reduce_sum,
    "reshape": _reshape,
    "rsqrt": _rsqrt,
    "select_n": _select_n,
    "slice": _slice,
    "split": _split,
    "square": _square,
    "squeeze": _reshape,
}
