"""Runs the instructions of a program, with or without its checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import keras_recompute as kr

from . import hand_written_gradients
from .environment import World
from .language import Checkpoint, Outside, Step, Steps, walk
from .op_table import APPLY, COMBINE, MOVE, REDUCE, WIDTH
from .scope import Frame, Value
from .wrappers import Wrap, checkpointed, policy_for


class Machine:
    """Runs instructions.

    Without the engine, checkpoints are what ``wrap`` makes of them, and scopes nothing.
    """

    def __init__(self, world: World, wrap: Wrap) -> None:
        self.world = world
        self.wrap = wrap
        self.engine = wrap is checkpointed

    def run(self, steps: Steps, frame: Frame) -> Frame:
        for step in steps:
            found = getattr(self, f"_{type(step).__name__.lower()}")(step, frame)
            frame = frame.with_value(*(found if isinstance(found, list) else [found]))
        return frame

    def body(
        self, steps: Steps, frame: Frame, *, kind: str = "matrix"
    ) -> Callable[[tf.Tensor], tf.Tensor]:
        """Return ``steps`` as a function from a tensor of ``kind`` to one of the same kind and
        shape.
        """

        def function(tensor: tf.Tensor) -> tf.Tensor:
            inner = self.run(steps, frame.with_value(Value(tensor, kind)))
            result = inner.as_kind(inner.value(0), kind)
            is_known = tensor.shape.rank is None or repr(result.shape) == repr(
                tensor.shape
            )  # equal says None of unknown
            return result if is_known else tf.ensure_shape(result, tensor.shape)

        return tf.autograph.experimental.do_not_convert(function)

    def _apply(self, step: Step, frame: Frame) -> Value:
        value = frame.value(step.of)
        return Value(APPLY[step.function](value.tensor), value.kind)

    def _combine(self, step: Step, frame: Frame) -> Value:
        a, b = frame.value(step.of), frame.value(step.other)
        kinds = {a.kind, b.kind} - {"scalar"}
        kind = "matrix" if len(kinds) > 1 else kinds.pop() if kinds else "scalar"
        return Value(COMBINE[step.function](a.tensor, b.tensor), kind)

    def _product(self, step: Step, frame: Frame) -> Value:
        x, other = frame.matrix(step.of), frame.matrix(step.other)
        if step.factor == "constant":
            return Value(tf.matmul(x, self.world.factor))
        if step.factor == "variable":
            return Value(tf.matmul(x, self.world.variables["matrix"]))
        if step.factor == "einsum":
            return Value(0.5 * tf.einsum("ij,kj,kl->il", x, other, other))
        return Value(0.5 * tf.matmul(tf.matmul(x, other, transpose_b=True), other))

    def _reduce(self, step: Step, frame: Frame) -> Value:
        x = frame.matrix(step.of)
        if step.along == "rows":
            return Value(REDUCE[step.function](x, axis=0), "row")
        if step.along == "columns":
            return Value(REDUCE[step.function](x, axis=1, keepdims=True), "column")
        return Value(REDUCE[step.function](x), "scalar")

    def _move(self, step: Step, frame: Frame) -> Value:
        return Value(MOVE[step.function](frame.matrix(step.of)))

    def _read(self, step: Step, frame: Frame) -> Value:
        variables, ids = self.world.variables, [1, 3, 1]
        if step.how == "gather":
            return Value(tf.reduce_mean(tf.gather(variables["table"], ids), axis=0), "row")
        if step.how == "gather by n":
            return Value(tf.gather(variables["table"], frame.n % 4), "row")
        if step.how == "gather_nd":
            return Value(
                tf.reduce_sum(tf.gather_nd(variables["table"], [[1, 0], [2, 1]])), "scalar"
            )
        if step.how == "embedding":
            return Value(
                tf.reduce_mean(tf.nn.embedding_lookup(variables["table"], ids), axis=0), "row"
            )
        if step.how == "read_value":
            return Value(variables["row"].read_value(), "row")
        if step.how == "slice":
            return Value(variables["table"][1], "row")
        if step.how == "lookup":
            return Value(self.world.lookup.lookup(frame.n), "scalar")
        if step.how == "counter":
            return Value(0.1 * tf.cast(self.world.counter, self.world.dtype), "scalar")
        if step.how == "matrix":
            return Value(tf.reduce_sum(variables["matrix"], axis=0), "row")
        return Value(
            tf.convert_to_tensor(variables[step.how]), "row" if step.how == "row" else "scalar"
        )

    def _assign(self, step: Step, frame: Frame) -> Value:
        value, variables = frame.value(step.of), self.world.variables
        number = 0.1 * frame.as_kind(value, "scalar")
        if step.how == "count":
            self.world.counter.assign_add(1)
        elif step.how == "table":
            variables["table"].scatter_nd_add([[1]], [tf.broadcast_to(number, [WIDTH])])
        elif step.how == "set scalar":
            variables["scalar"].assign(number)
        else:
            variables[step.how].assign_add(tf.broadcast_to(number, variables[step.how].shape))
        return value

    def _outside(self, _step: Outside, frame: Frame) -> Value:
        return Value(frame.values[0].tensor if self.world.outside is None else self.world.outside)

    def _loop(self, step: Step, frame: Frame) -> Value:
        x = frame.matrix(step.of)
        if step.kind in ("map_fn", "vectorized_map", "foldl", "scan"):
            row = self.body(step.body, frame, kind="row")
            if step.kind != "scan" and step.kind != "foldl":
                return Value((tf.map_fn if step.kind == "map_fn" else tf.vectorized_map)(row, x))
            together = lambda a, b: row(a + b)  # noqa: E731
            if step.kind == "scan":
                return Value(tf.scan(together, x))
            return Value(tf.foldl(together, x, initializer=tf.zeros_like(x[0])), "row")
        body = self.body(step.body, frame)
        turns, options = {
            "while": (2, {}),
            "bounded while": (2, {"maximum_iterations": 2}),
            "n turns": (frame.n, {"maximum_iterations": 3}),
        }[step.kind]
        return Value(
            tf.while_loop(lambda i, _: i < turns, lambda i, h: (i + 1, body(h)), (0, x), **options)[
                1
            ]
        )

    def _branch(self, step: Step, frame: Frame) -> Value:
        x = frame.matrix(step.of)
        predicate = {
            "n is odd": lambda: tf.equal(frame.n % 2, 1),
            "large": lambda: tf.reduce_sum(x) > 1e4,
            "small": lambda: tf.reduce_sum(x) < 1e4,
        }[step.predicate]()
        then, otherwise = self.body(step.then, frame), self.body(step.otherwise, frame)
        return Value(tf.cond(predicate, lambda: then(x), lambda: otherwise(x)))

    def _switch(self, step: Step, frame: Frame) -> Value:
        x = frame.matrix(step.of)
        branches = [self.body(branch, frame) for branch in step.branches]
        return Value(
            tf.switch_case(
                frame.n % len(branches), [lambda branch=branch: branch(x) for branch in branches]
            )
        )

    def _call(self, step: Step, frame: Frame) -> Value:
        x = frame.matrix(step.of)
        if step.kind == "shared" and not any(
            isinstance(s, (Checkpoint, Outside)) for s in walk(step.body)
        ):
            alone = lambda x, n, rows: self.body(step.body, Frame((Value(x),), n, rows))(x)  # noqa: E731
            shared = self.world.shared.setdefault(step, tf.function(alone, autograph=False))
            function = lambda x: shared(x, frame.n, frame.rows)  # noqa: E731
        else:
            function = tf.function(
                self.body(step.body, frame),
                autograph=False,
                jit_compile=step.kind == "compiled" or None,
            )
        for _ in range(step.times):
            x = function(x)
        return Value(x)

    def _checkpoint(self, step: Checkpoint, frame: Frame) -> list[Value]:
        kinds: list[str] = []

        @tf.autograph.experimental.do_not_convert
        def inner(x: tf.Tensor) -> Any:
            values = self.run(step.body, frame.with_value(Value(x))).values[-step.returns :]
            kinds[:] = [value.kind for value in values]
            return [value.tensor for value in values], frame.n + 1 if step.integer else None

        run = self.wrap(inner, policy_for(step.policy, step.body))
        tensors, integer = run(frame.matrix(step.of))
        values = [Value(tensor, kind) for tensor, kind in zip(tensors, kinds)]
        return (
            values
            if integer is None
            else [Value(0.1 * tf.cast(integer, self.world.dtype), "scalar"), *values]
        )

    def _derive(self, step: Step, frame: Frame) -> Value:
        x, body = frame.matrix(step.of), self.body(step.body, frame)
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(body(x))
        gradient = tape.gradient(total, x, unconnected_gradients="zero")
        return Value(tf.convert_to_tensor(gradient))

    def _scope(self, step: Step, frame: Frame) -> Value:
        scope = (
            {"recompute": kr.recompute_scope, "keep": kr.keep_scope}[step.kind]
            if self.engine
            else contextlib.nullcontext
        )
        with scope():
            inner = self.run(step.body, frame.with_value(frame.value(step.of)))
        return inner.value(0)

    def _name(self, step: Step, frame: Frame) -> Value:
        value = frame.value(step.of)
        return Value(kr.checkpoint_name(value.tensor, step.name), value.kind)

    def _custom(self, step: Step, frame: Frame) -> Value:
        return Value(
            hand_written_gradients.CUSTOM[step.kind](
                frame.matrix(step.of), frame.matrix(step.other), self.world
            )
        )

    def _draw(self, step: Step, frame: Frame) -> Value:
        x, shape = frame.matrix(step.of), [frame.rows, WIDTH]
        if step.source == "generator":
            drawn = self.world.generator.uniform(shape)
        else:
            drawn = tf.random.stateless_uniform(
                shape, [frame.n if step.source == "seed n" else 1, 2]
            )
        return Value(x * tf.cast(drawn < 0.7, x.dtype))

    def _fail(self, step: Step, frame: Frame) -> Value:
        return Value(hand_written_gradients.FAIL[step.kind](frame.matrix(step.of)))
