"""Variables of TensorFlow with a type and a shape and no value. Seen with TensorFlow 2.18 to 2.21.

A function that reads them can be traced and compiled: XLA asks for their shapes alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, ContextManager

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

_COLUMNS = 1024
_is_compiling = ContextVar("is_compiling", default=False)


@contextlib.contextmanager
def only_compiling() -> Iterator[None]:
    """Return a context in which functions are traced to be compiled, and not to run."""
    token = _is_compiling.set(True)
    try:
        yield
    finally:
        _is_compiling.reset(token)


@contextlib.contextmanager
def graph_not_to_run() -> Iterator[None]:
    """Return a context in which operations become part of a graph that is thrown away."""
    with tf.__internal__.FuncGraph("not_to_run").as_default(), only_compiling():
        yield


class ValuelessVariable(UninitializedVariable):
    """A variable that has no value until one is assigned.

    Where the missing value is read, ``refuse()`` is called, which raises an error. A graph may
    still read the variable while Keras infers shapes, or in ``only_compiling``.
    """

    def __init__(self, refuse: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._refuse = refuse

    @property
    def lacks_value(self) -> bool:
        """Whether no value was assigned yet."""
        with tf.init_scope():
            return not self.is_initialized()

    def _check_reading(self) -> None:
        from keras.src.backend.common.stateless_scope import in_stateless_scope

        needs_no_value = in_stateless_scope() or _is_compiling.get()
        if (tf.executing_eagerly() or not needs_no_value) and self.lacks_value:
            self._refuse()

    def _read_variable_op(self, *args: Any, **kwargs: Any) -> Any:
        self._check_reading()
        return super()._read_variable_op(*args, **kwargs)

    def sparse_read(self, *args: Any, **kwargs: Any) -> Any:
        """Read rows, as the superclass does."""
        self._check_reading()
        return super().sparse_read(*args, **kwargs)

    def assign_add(self, *args: Any, **kwargs: Any) -> Any:
        """Add to the value, as the superclass does."""
        self._check_reading()
        return super().assign_add(*args, **kwargs)

    def assign_sub(self, *args: Any, **kwargs: Any) -> Any:
        """Subtract from the value, as the superclass does."""
        self._check_reading()
        return super().assign_sub(*args, **kwargs)


def lend_values(concrete: Any) -> ContextManager[Any]:
    """Exchange the variables without values that ``concrete`` reads, and return a context.

    When it ends they are back. TensorFlow hands a function to XLA only if all its variables have
    values, so they are exchanged for others of the same type and shape. Those of one type share one
    piece of memory. It is never written or read, so that the system never provides it. Raises
    MemoryError if the largest variable is larger than this machine's memory, since the system
    promises no more.
    """
    captured = concrete.captured_inputs
    lacking = {id(v.handle): v for v in concrete.variables if getattr(v, "lacks_value", False)}
    lent = dict(zip(lacking, _filled(list(lacking.values()))))
    handles = [lent[id(each)].handle if id(each) in lent else each for each in captured]
    concrete.set_external_captures(handles)
    context = contextlib.ExitStack()
    context.callback(concrete.set_external_captures, captured)
    context.callback(lent.clear)  # the context holds them until then
    return context


def _filled(variables: Sequence[Any]) -> list[Any]:
    """Return variables like ``variables`` that have values, whatever these are."""
    filled = []
    largest: dict[tf.DType, int] = {}
    for variable in variables:
        size = variable.shape.num_elements()
        largest[variable.dtype] = max(size, largest.get(variable.dtype, 0))
    with tf.init_scope():
        memory = {dtype: _memory(size, dtype) for dtype, size in largest.items()}
        for variable in variables:
            shape = tf.constant(variable.shape, tf.int64)
            size = tf.reshape(tf.reduce_prod(shape), [1])
            part = tf.slice(memory[variable.dtype], tf.zeros_like(size), size)
            twin = UninitializedVariable(shape=variable.shape, dtype=variable.dtype)
            twin.assign(tf.reshape(part, shape), read_value=False)
            filled.append(twin)
    return filled


def _memory(size: int, dtype: tf.DType) -> tf.Tensor:
    """Return a vector of at least ``size`` elements, of pages that nothing has touched."""
    # The operation's dimensions are integers of 32 bits.
    shape = [-(-size // _COLUMNS), _COLUMNS]
    try:
        empty = tf.raw_ops.Empty(shape=shape, dtype=dtype, init=False)
    except tf.errors.ResourceExhaustedError as error:
        raise MemoryError(f"{size * dtype.size} bytes of one variable") from error
    return tf.reshape(empty, tf.constant([-1], tf.int64))
