"""State that layers keep outside of Keras's variables: a replay finds it and leaves it."""

import collections
import itertools
import random
import types

import keras
import numpy as np
import pytest
from plain_oracle import every

import keras_recompute as kr

L = keras.layers
X, Y = np.random.default_rng(0).standard_normal((2, 16, 8)).astype("float32")


class Scales(L.Layer):
    """Multiplies by a number that its call changes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.calls = 0

    def call(self, x):
        self.calls += 1
        return x * (1.0 + 0.1 * self.calls)


def network():
    x = inputs = keras.Input((8,))
    for _ in range(4):
        x = Scales()(L.Dense(8, "tanh")(x))
    return keras.Model(inputs, L.Dense(8)(x))


def test_a_number_that_a_call_changes():
    found = []
    for place in (lambda model: model, every(4)):
        keras.utils.set_random_seed(0)
        model = place(network())
        model.compile("sgd", "mse", run_eagerly=True)  # eagerly a call runs at each step
        scales = [layer for layer in model.layers if isinstance(layer, Scales)]
        for layer in scales:
            layer.calls = 0  # the construction of a model calls it too
        model.train_on_batch(X, Y)
        found.append([model.get_weights(), [layer.calls for layer in scales]])
    (plain, plain_calls), (ours, calls) = found
    assert calls == plain_calls
    for value, wanted in zip(ours, plain):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(keras.config.backend() != "torch", reason="modules of PyTorch")
def test_buffers_of_modules_of_pytorch():
    import torch

    running = []
    for place in (None, every(2)):
        keras.utils.set_random_seed(0)
        torch.manual_seed(0)
        x = inputs = keras.Input((8,))
        norms = [
            L.TorchModuleWrapper(torch.nn.BatchNorm1d(8), output_shape=(None, 8)) for _ in range(3)
        ]
        for norm in norms:
            x = norm(L.Dense(8, "tanh")(x))
        model = keras.Model(inputs, L.Dense(8)(x))
        model = place(model) if place else model
        model.compile("sgd", "mse", jit_compile=False)
        losses = [float(model.train_on_batch(X, Y)) for _ in range(3)]
        running.append([losses, *(norm.module.running_mean.tolist() for norm in norms)])
    np.testing.assert_allclose(running[0][0], running[1][0], rtol=1e-6)
    for plain, ours in zip(*(each[1:] for each in running)):
        np.testing.assert_allclose(ours, plain, rtol=1e-6)
    assert isinstance(model, kr.Model)


def filled(x, found):
    found.append(keras.ops.sum(x))
    return keras.ops.tanh(x)


def named(x, found):
    found["sum"] = keras.ops.sum(x)
    return keras.ops.tanh(x)


@pytest.mark.parametrize(("function", "empty"), [(filled, list), (named, dict)])
def test_an_argument_that_a_function_fills_is_refused(function, empty):
    def loss(x):
        return keras.ops.sum(kr.checkpoint(function)(x, empty()))

    with pytest.raises(kr.errors.InvalidArgumentError, match="changes a list or dict that it is"):
        gradient_of(loss, X)


def gradient_of(loss, x):
    if keras.config.backend() == "jax":
        import jax

        return jax.grad(loss)(x)
    import torch

    x = torch.tensor(x, requires_grad=True)
    return torch.autograd.grad(loss(x), x)[0]


ON_PYTORCH = pytest.mark.skipif(keras.config.backend() != "torch", reason="replays in Python")
CALLS = 0


class Draws:
    def __init__(self):
        self.generator = np.random.RandomState(3)

    def __call__(self, x):
        return keras.ops.tanh(x * float(self.generator.rand()))


def draws(make, draw):
    """Return a function that draws numbers by a generator of its own."""

    def build():
        generator = make()
        return lambda x: keras.ops.tanh(x * float(draw(generator)))

    return build


def counts_in_a_list():
    calls, seen = [0], {}

    def function(x):
        calls[0] += 1
        seen[calls[0]] = x
        return keras.ops.tanh(x * len(seen) * calls[0])

    return function


def counts_in_an_array():
    calls = np.zeros(2)

    def function(x):
        calls[1] += 1
        return keras.ops.tanh(x * float(calls[1]))

    return function


def counts_in_a_closure():
    calls = 0

    def function(x):
        nonlocal calls
        calls += 1
        return keras.ops.tanh(x * calls)

    return function


def counts_in_a_global():
    global CALLS  # noqa: PLW0603 as in users' programs
    CALLS = 0

    def function(x):
        global CALLS  # noqa: PLW0603
        CALLS += 1
        return keras.ops.tanh(x * CALLS)

    return function


def with_torch_generator():
    import torch

    generator = torch.Generator().manual_seed(7)
    return lambda x: torch.tanh(x + torch.randn(x.shape, generator=generator))


def counts_in_a_tensor():
    import torch

    calls = torch.zeros(())

    def function(x):
        nonlocal calls
        calls = calls + 1
        return torch.tanh(x * calls)

    return function


def counts_in_a_default(x, calls=[0]):  # noqa: B006 as in users' programs
    calls[0] += 1
    return keras.ops.tanh(x * calls[0])


def counts_as_an_attribute():
    def function(x):
        function.calls = getattr(function, "calls", 0) + 1
        return keras.ops.tanh(x * function.calls)

    return function


def turns_a_deque():
    numbers = collections.deque([1.0, 2.0, 3.0])

    def function(x):
        numbers.rotate(1)
        return keras.ops.tanh(x * numbers[0])

    return function


class InSlots:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return keras.ops.tanh(x * self.calls)


def counts_in_a_class():
    class Counts:
        calls = 0

        def __call__(self, x):
            type(self).calls += 1
            return keras.ops.tanh(x * self.calls)

    return Counts()


def names_a_global_inside():
    """Only the code of an expression inside names the generator."""
    OF_PYTHON.seed(3)
    return lambda x: keras.ops.tanh(x * sum(OF_PYTHON.random() for _ in range(2)))


OF_PYTHON = random.Random()
STATES = {
    "a list and a dict": counts_in_a_list,
    "an array": counts_in_an_array,
    "a closure": counts_in_a_closure,
    "a global": counts_in_a_global,
    "an object": Draws,
    "a tensor": counts_in_a_tensor,
    "a default": lambda: types.FunctionType(
        counts_in_a_default.__code__, globals(), argdefs=([0],)
    ),
    "a function's attribute": counts_as_an_attribute,
    "a deque": turns_a_deque,
    "slots": InSlots,
    "a class": counts_in_a_class,
    "a global of a function inside": names_a_global_inside,
    "NumPy's generator": draws(lambda: np.random.default_rng(3), lambda rng: rng.random()),
    "Python's generator": draws(lambda: random.Random(3), lambda rng: rng.random()),
    "PyTorch's generator": with_torch_generator,
}


@ON_PYTORCH
@pytest.mark.parametrize("state", STATES)
def test_a_replay_finds_and_leaves_state_of_python(state):
    def gradients(wrap):
        function = STATES[state]()
        # The second call finds what the first one left.
        return [gradient_of(lambda x: (wrap(function)(x) ** 2).sum(), X) for _ in range(2)]

    for ours, plain in zip(gradients(kr.checkpoint), gradients(lambda function: function)):
        np.testing.assert_array_equal(ours, plain)
    if state == "a global":
        assert CALLS == 2


class Remembers(L.Layer):
    """Multiplies by how often it was called, which it keeps in a list."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen = []

    def call(self, x):
        self.seen.append(1.0)
        return keras.ops.tanh(x * float(len(self.seen)))


@ON_PYTORCH
def test_a_list_of_a_layer():
    def gradients(wrap):
        layer = Remembers()
        return gradient_of(lambda x: (wrap(layer)(x) ** 2).sum(), X), len(layer.seen)

    (ours, calls), (plain, plain_calls) = gradients(kr.checkpoint), gradients(lambda layer: layer)
    np.testing.assert_array_equal(ours, plain)
    assert calls == plain_calls


class Noise(L.Layer):
    """Draws from a generator that only the code of its call names."""

    def call(self, x):
        return keras.ops.tanh(x * float(OF_PYTHON.random()))


def jittered(x):
    return keras.ops.tanh(x * float(OF_PYTHON.random()))


LAYERS = {
    "a global of its class": lambda: [L.Dense(8), Noise()],
    "a function of a Lambda": lambda: [L.Dense(8), L.Lambda(jittered)],
    "an activation": lambda: [L.Dense(8, activation=jittered)],
}
PLACES = {
    "every": every(1),
    "layers": lambda model: kr.checkpointed(model, layers="*"),
    "checkpoint": kr.checkpoint,
}


@ON_PYTORCH
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layers", LAYERS)
def test_state_that_layers_of_a_model_use(layers, place):
    keras.utils.set_random_seed(0)
    stack = [layer for _ in range(3) for layer in LAYERS[layers]()]
    plain = keras.Sequential([keras.Input((8,)), *stack])

    def gradients(model):
        OF_PYTHON.seed(3)
        return gradient_of(lambda x: (model(x, training=True) ** 2).sum(), X)

    np.testing.assert_array_equal(gradients(PLACES[place](plain)), gradients(plain))


def in_place():
    import torch

    calls = torch.zeros(())
    return lambda x: torch.tanh(x * float(calls.add_(1)))


def asks(make):
    def build():
        numbers = make()
        return lambda x: keras.ops.tanh(x * next(numbers))

    return build


UNRESTORED = {
    "a tensor": (in_place, r"a tensor float32\[\] in place"),
    "a list's": (asks(lambda: iter([1.0, 2.0, 3.0])), r"an iterator \(list_iterator\)"),
    "a count": (asks(lambda: itertools.count(1)), r"an iterator \(count\)"),
    "a map's": (asks(lambda: map(float, [1, 2, 3])), r"an iterator \(map\)"),
    "a cycle": (asks(lambda: itertools.cycle([1.0, 2.0])), r"an iterator \(cycle\)"),
    "a generator": (asks(lambda: (float(n) for n in range(3))), r"an iterator \(generator\)"),
}


@ON_PYTORCH
@pytest.mark.parametrize("state", UNRESTORED)
def test_a_replay_that_changes_what_cannot_be_put_back_is_refused(state):
    make, what = UNRESTORED[state]
    function = kr.checkpoint(make())
    with pytest.raises(kr.errors.ReplayError, match=f"a replay changed {what}"):
        gradient_of(lambda x: (function(x) ** 2).sum(), X)


@ON_PYTORCH
def test_what_is_read_alone_is_not_refused():
    import torch

    scale, items = torch.full((8,), 2.0), iter([1.0])

    def function(x):
        return torch.tanh(x * scale) if items is not None else x

    recomputed = kr.checkpoint(function)
    plain = gradient_of(lambda x: (function(x) ** 2).sum(), X)
    ours = gradient_of(lambda x: (recomputed(x) ** 2).sum(), X)
    np.testing.assert_array_equal(ours, plain)


@ON_PYTORCH
def test_more_objects_than_are_looked_at():
    objects = [[[number] for number in range(40)] for _ in range(40)]  # 1,641 lists

    recomputed = kr.checkpoint(lambda x: keras.ops.tanh(x * len(objects)))
    with pytest.warns(UserWarning, match="refers to more than 1000 objects"):
        gradient_of(lambda x: (recomputed(x) ** 2).sum(), X)
