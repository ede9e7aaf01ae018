"""What Python objects hold, written down so that equal structures are written alike.

An object and all that it refers to is a rooted graph with ordered edges. It is written value by
value in the order in which it is walked; what is met again is written as the number that it got
when it was met first, which makes the form canonical.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...engine.calls import MOST_VALUES, SMALL_ARRAY_BYTES, IdentityKey, is_known_here
from ...layers.active_groups import is_stand_in
from ...seams.keras.graph import GRAPH_OF_MODEL, Functional
from ...seams.keras.layers import BOOKKEEPING, TRACKING_PREFIX, TRAINING_STATE, VARIABLE_BOOKKEEPING
from ...seams.tensorflow.tensors import is_eager
from .call_code import CallCode, is_of_known_package
from .call_graph import InitialState, Key, Ref, positions_of, read_graph

# What our own attributes begin with.
_OURS = "_keras_recompute"
_PLAIN = (type(None), bool, int, str, bytes, range, tf.DType, np.dtype)
_OF_PROCESS = (type, types.ModuleType, types.BuiltinFunctionType, np.ufunc)
_OPAQUE_PACKAGES = ("tensorflow", "numpy", "jax", "jaxlib", "torch", "threading", "builtins")


class TooLargeError(Exception):
    """An operation holds more values than are looked at, and than are watched for changes."""


class ObjectGraph:
    """Keys of Python values, which are equal for values that hold the same.

    ``own`` are the variables of the operation that is looked at, ``code`` what its code names, and
    ``value_number`` the role of a value of the model among the arguments of a call. ``objects`` are
    the operations and variables that were met, in order.
    """

    def __init__(
        self,
        *,
        own: Iterable[Any] = (),
        code: CallCode | None = None,
        value_number: Callable[[Key], Hashable] | None = None,
    ) -> None:
        self.own = tuple(own)
        self.objects: list[Any] = []
        self.is_portable = True
        self._code = code or CallCode()
        self._value_number = value_number
        self._place: dict[int, int] = {}
        for n, variable in enumerate(self.own):
            self._place.setdefault(id(variable), n)
        # With the object, so that its id stays its own.
        self._met: dict[int, tuple[int, Any]] = {}
        self._count = 0
        self._left = MOST_VALUES

    def key(self, value: Any) -> Hashable:
        """Return ``value`` in a form that is equal for what is equal."""
        self._left -= 1
        if self._left < 0:
            raise TooLargeError
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if kind in (float, complex):
            # Nan is nan, and -0.0 is not 0.0.
            return kind, repr(value)
        if isinstance(value, np.generic):
            return kind, value.dtype, value.tobytes()
        if isinstance(value, _OF_PROCESS):
            return IdentityKey(value)
        if isinstance(value, tf.TensorShape):
            return kind, None if value.rank is None else tuple(value.as_list())
        if isinstance(value, Ref):
            return self._reference(value)
        if id(value) in self._met:
            return "met", self._met[id(value)][0]
        self._count += 1
        self._met[id(value)] = self._count, value
        form = self._new(value)
        if not _may_change(value):
            # One that refers to itself was numbered; of others it is the same to hold two.
            del self._met[id(value)]
        return form

    def _new(self, value: Any) -> Hashable:
        """Return the form of ``value``, which was not met before."""
        if isinstance(value, (np.ndarray, tf.Tensor)):
            return self._array(value)
        if isinstance(value, keras.KerasTensor):
            # Has no value, only these.
            return type(value), tuple(value.shape), value.dtype
        if isinstance(value, keras.Variable):
            return self._variable(value)
        if isinstance(value, keras.Operation):
            return self._operation(value)
        if isinstance(value, slice):
            return slice, self.key([value.start, value.stop, value.step])
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return types.MethodType, self.key(value.__func__), self.key(value.__self__)
        if type(value) is functools.partial:
            parts = [value.func, value.args, value.keywords, vars(value)]
            return functools.partial, self.key(parts)
        if isinstance(value, keras.random.SeedGenerator):
            # Which is all that it draws from.
            return type(value), self.key(value.state)
        if _is_container(value):
            return self._container(value)
        return self._object(value)

    def _identity(self, value: Any) -> Hashable:
        self.is_portable = False
        return IdentityKey(value)

    def _reference(self, reference: Ref) -> Hashable:
        assert self._value_number is not None
        return Ref, self._value_number(reference.key)

    def _array(self, value: Any) -> Hashable:
        if isinstance(value, tf.Tensor) and not is_known_here(value):
            # Left behind by an earlier trace: it has no value, and no call can read it.
            return tf.Tensor, value.dtype, self.key(value.shape)
        if isinstance(value, tf.Tensor):
            is_readable = is_eager(value) and value.dtype.is_numpy_compatible
            if not is_readable or value.dtype in (tf.string, tf.resource, tf.variant):
                return self._identity(value)
        elif type(value) is not np.ndarray or value.dtype.hasobject:
            return self._identity(value)
        # np.asarray fails on a TensorFlow scalar in bfloat16, and numpy() does not.
        array = np.asarray(value.numpy() if isinstance(value, tf.Tensor) else value)
        if array.nbytes > SMALL_ARRAY_BYTES:
            return self._identity(value)
        kind = tf.Tensor if isinstance(value, tf.Tensor) else np.ndarray
        return kind, array.dtype, array.shape, array.tobytes()

    def _variable(self, variable: keras.Variable) -> Hashable:
        place = self._place.get(id(variable))
        if place is None:
            return self._identity(variable)
        self.objects.append(variable)
        state = {}
        for name, item in vars(variable).items():
            if name not in VARIABLE_BOOKKEEPING and not name.startswith(TRACKING_PREFIX):
                state[name] = item
        return type(variable), place, self._attributes(state)

    def _operation(self, operation: keras.Operation) -> Hashable:
        self.objects.append(operation)
        state = _state(operation)
        if state is None or _is_model_of_ours(operation):
            return self._identity(operation)
        state = {name: item for name, item in state.items() if self._counts(name, item)}
        if "_dtype_policy" in state:
            # A map of policies speaks of paths; what it says of this layer's path is what counts.
            state["_dtype_policy"] = operation.dtype_policy
        left_out: set[str] = set()
        graph: Hashable = None
        if isinstance(operation, keras.Model):
            left_out.update(_of_models())
        if isinstance(operation, Functional):
            left_out.update(GRAPH_OF_MODEL)
            graph = self._graph(operation)
        for name in left_out:
            state.pop(name, None)
        return type(operation), self._attributes(state), graph

    def _counts(self, name: str, item: Any) -> bool:
        if name.startswith((_OURS, TRACKING_PREFIX)) or is_stand_in(item):
            return False
        if self._code.reads(name):
            return True
        is_initializer = isinstance(item, keras.initializers.Initializer)
        return not (is_initializer or name in BOOKKEEPING or name in self._code.only_set)

    def _graph(self, model: Functional) -> Hashable:
        """Return how the calls of a functional model are wired."""
        graph = read_graph(model)
        numbers: dict[Key, Hashable] = dict(positions_of(graph.inputs))

        def number_of(key: Key) -> Hashable:
            if key not in numbers and isinstance(key, InitialState):
                numbers[key] = self.key(key.layer), key.slot
            return numbers[key]

        calls = []
        outer, self._value_number = self._value_number, number_of
        for call in graph.calls:
            calls.append(
                (self.key(call.operation), self.key((call.args, call.kwargs, call.training)))
            )
            for key in call.outputs:
                numbers[key] = len(numbers)
        self._value_number = outer
        ends = tuple(map(number_of, graph.outputs))
        return tuple(calls), ends, self.key(model.input), self.key(model.output)

    def _function(self, function: types.FunctionType) -> Hashable:
        if not is_of_known_package(function):
            # What it finds among its globals may be changed.
            self.is_portable = False
        parts = [function.__defaults__, function.__kwdefaults__, vars(function)]
        cells = map(_contents_of, function.__closure__ or ())
        return function.__code__, IdentityKey(function.__globals__), self.key([*parts, *cells])

    def _container(self, value: Any) -> Hashable:
        # Keras and TensorFlow wrap the lists and dicts that a layer holds.
        if isinstance(value, Mapping):
            factory = getattr(value, "default_factory", None)
            items = tuple((self.key(key), self.key(item)) for key, item in value.items())
            return dict, IdentityKey(type(value)) if factory else None, self.key(factory), items
        base = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
        kind = type(value) if hasattr(value, "_fields") else base
        # A set in the order in which its items are taken.
        return kind, tuple(map(self.key, value))

    def _object(self, value: Any) -> Hashable:
        """Return a Python object by its class and attributes, if these are all that it is."""
        state = None
        if type(value).__module__.split(".")[0] not in _OPAQUE_PACKAGES:
            state = _state(value)
        # What has no attributes and is not called, such as a sentinel, can only be told by
        # identity.
        if state is None or not (state or callable(value)):
            return self._identity(value)
        if not is_of_known_package(type(value)):
            self.is_portable = False
        return IdentityKey(type(value)), self._attributes(state)

    def _attributes(self, state: Mapping[str, Any]) -> Hashable:
        return tuple((name, self.key(state[name])) for name in sorted(state))


def _may_change(value: Any) -> bool:
    """Whether it matters that it is one object that is held in two places."""
    if isinstance(value, (keras.Variable, keras.Operation, list, dict, set)):
        return True
    values = (tuple, frozenset, slice, np.ndarray, tf.Tensor, types.FunctionType, types.MethodType)
    is_value = isinstance(value, values) or is_of_known_package(type(value))
    return not is_value


def _is_model_of_ours(operation: Any) -> bool:
    """Whether it is a model that keeps a plan, which is not told apart."""
    if not isinstance(operation, keras.Model):
        return False
    return any(kind.__module__.startswith("keras_recompute.") for kind in type(operation).__mro__)


@functools.cache
def _of_models() -> frozenset[str]:
    """Return the names of what every model has beside what every layer has."""
    return TRAINING_STATE | (frozenset(vars(keras.Model())) - frozenset(vars(keras.layers.Layer())))


def _is_container(value: Any) -> bool:
    """Whether it is one of Python's containers, or one that Keras puts in its place."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        # Not of a class with attributes of its own.
        return type(value).__bases__ == (tuple,)
    is_wrapper = type(value).__module__.split(".")[0] in ("keras", "tensorflow", "collections")
    kinds = (list, tuple, dict, set, frozenset)
    return type(value) in kinds or (is_wrapper and isinstance(value, kinds))


def _contents_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        # Which no user's function closes over.
        return _contents_of


def _state(value: Any) -> dict[str, Any] | None:
    """Return the attributes of ``value`` if all that it is stands in them, else None.

    An object with state of another kind, as classes written in C have it, is larger than one with
    the same attributes and slots.
    """
    slots = _slots(type(value))  # type: ignore[arg-type]  # classes can be hashed
    if slots is None:
        return None
    found = {}
    for name in slots:
        if hasattr(value, name):
            found[name] = getattr(value, name)
    found.update(getattr(value, "__dict__", {}))
    return found if all(isinstance(name, str) for name in found) else None


@functools.lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[str, ...] | None:
    slots: list[str] = []
    for each in kind.__mro__:
        own = vars(each).get("__slots__", ())
        slots += (own,) if isinstance(own, str) else own
    names = []
    for name in slots:
        if name in ("__dict__", "__weakref__"):
            continue
        if name.startswith("__"):
            return None
        names.append(name)
    like: type = type("Like", (), {"__slots__": tuple(dict.fromkeys(slots))})
    if kind.__dictoffset__ and "__dict__" not in slots:
        like = type("LikeWithAttributes", (like,), {})
    is_plain = kind.__basicsize__ == like.__basicsize__ and not kind.__itemsize__
    return tuple(names) if is_plain else None
