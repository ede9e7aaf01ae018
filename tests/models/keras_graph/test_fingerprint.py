"""Equality is by what layers hold: what differs stays apart and trains as plain Keras does."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.models.keras_graph.fingerprint import Fingerprints
from tests.oracle import assert_all_close, loss_and_gradients, sum_of_sines

from ..layers_by_contents import DIFFERENT, EQUAL, Scale, Settings, dense

X = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
COUNT = 3


def key(operation):
    return Fingerprints().of(operation).key


def built(make, number):
    layer = make(number)
    layer(X)
    return layer


def models(make, *, checkpoints):
    """Return a model with loops and a plain one that share their layers."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((4,), batch_size=2)
    for number in range(COUNT):
        x = make(number)(x)
        x = kr.RecomputationCheckpoint()(x) if checkpoints else x
    model = kr.Model(inputs, keras.layers.Dense(1)(x))
    for n, variable in enumerate(model.trainable_variables):
        variable.assign(
            0.5 * np.cos(np.arange(np.prod(variable.shape)) + n).reshape(variable.shape)
        )
    model.scan_layers = True
    return model, keras.Model(model.inputs, model.outputs)


def has_loop(model):
    steps = [each for step in model.plan.steps for each in (step, *step.inner_steps)]
    return any(hasattr(step, "isomorphic") for step in steps)


def assert_trains_as(plain, model, mode):
    # Both in one mode: XLA draws other random numbers from a seed.
    ours, expected = (
        loss_and_gradients(each, X, mode=mode, of_inputs=True, loss=sum_of_sines)
        for each in (model, plain)
    )
    assert_all_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", DIFFERENT)
def test_layers_that_hold_something_else_are_not_equal(name):
    make = DIFFERENT[name]
    assert len({key(built(make, n)) for n in range(COUNT)}) > 1


@pytest.mark.parametrize("name", EQUAL)
def test_layers_that_hold_the_same_are_equal(name):
    make = EQUAL[name]
    assert len({key(built(make, n)) for n in range(COUNT)}) == 1


MODES = pytest.mark.parametrize(
    "mode",
    [
        "graph",
        pytest.param("eager", marks=pytest.mark.long),
        pytest.param("jit", marks=pytest.mark.long),
    ],
)
CHECKPOINTS = pytest.mark.parametrize(
    "checkpoints", [True, pytest.param(False, marks=pytest.mark.long)], ids=["checkpoints", "none"]
)


@MODES
@CHECKPOINTS
@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_trains_as_the_plain_model(name, checkpoints, mode):
    model, plain = models(DIFFERENT[name], checkpoints=checkpoints)
    assert_trains_as(plain, model, mode)


@MODES
@CHECKPOINTS
@pytest.mark.parametrize("name", EQUAL)
def test_what_is_equal_is_a_loop_and_trains_as_the_plain_model(name, checkpoints, mode):
    model, plain = models(EQUAL[name], checkpoints=checkpoints)
    assert has_loop(model)
    assert_trains_as(plain, model, mode)


def test_weights_that_two_layers_of_one_section_share_set_it_apart():
    """The blocks call two layers each; in the first both have one kernel."""

    def block(number):
        first, second = dense("tanh"), dense("tanh")
        first.build((2, 4))
        second.build((2, 4))
        if number == 0:
            second._tracker.unlock()
            second._kernel = first._kernel
            second._trainable_variables[0] = first._kernel
        return lambda x: second(first(x))

    model, plain = models(block, checkpoints=True)
    assert_trains_as(plain, model, "graph")


def change_attribute(layer):
    layer.factor = 5.0


def change_list(layer):
    layer.factor[0] = 5.0


def change_nested(layer):
    layer.factor[0]["k"] = 5.0


def change_object(layer):
    layer.factor.factor = 5.0


def change_array(layer):
    layer.factor[:] = 5.0


def change_cell(layer):
    layer.get_factor.__closure__[0].cell_contents = 5.0


def closure(k):
    return lambda factor: factor * k


CHANGES = {
    "attribute": (lambda _: Scale(2.0), change_attribute),
    "list": (lambda _: Scale([2.0], lambda s: s[0]), change_list),
    "dict in a list": (lambda _: Scale([{"k": 2.0}], lambda s: s[0]["k"]), change_nested),
    "object": (lambda _: Scale(Settings(2.0), lambda s: s.factor), change_object),
    "array": (lambda _: Scale(np.full(4, 2.0, "float32")), change_array),
    "closure": (lambda _: Scale(1.0, closure(2.0)), change_cell),
}


@pytest.mark.parametrize(
    "mode",
    [
        "eager",
        pytest.param("graph", marks=pytest.mark.long(every_case=True)),
        pytest.param("jit", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_between_two_steps_counts(name, mode):
    make, change = CHANGES[name]
    model, plain = models(make, checkpoints=True)
    assert has_loop(model)
    assert_trains_as(plain, model, mode)
    changed = next(layer for layer in model.layers if isinstance(layer, Scale))
    change(changed)
    assert_trains_as(plain, model, mode)


def test_an_object_that_refers_to_itself_has_a_fingerprint():
    def cyclic(k):
        settings = Settings(k)
        settings.itself = [settings]
        return Scale(settings, lambda s: s.itself[0].factor)

    same, other = (built(lambda _, k=k: cyclic(k), 0) for k in (1.0, 2.0))
    assert key(same) == key(built(lambda _: cyclic(1.0), 0)) != key(other)


def test_one_object_twice_and_two_equal_objects_differ():
    """The call may change one of them."""

    def pair(is_one):
        first = Settings(1.0)
        return Scale([first, first if is_one else Settings(1.0)], lambda s: s[1].factor)

    assert key(built(lambda _: pair(True), 0)) != key(built(lambda _: pair(False), 0))


def test_objects_without_attributes_are_told_by_identity():
    class Mode:
        pass

    one, other = Mode(), Mode()
    by_mode = [Scale(mode, lambda m: 1.0 if m is one else 2.0) for mode in (one, one, other)]
    first, same, apart = (key(built(lambda _, layer=layer: layer, 0)) for layer in by_mode)
    assert first == same != apart


def test_a_layer_that_holds_too_much_is_equal_to_itself_alone():
    large = [{n: str(n) for n in range(30_000)} for _ in range(2)]
    one, other = (built(lambda _, d=d: Scale(d, lambda d: float(d[1])), 0) for d in large)
    assert key(one) == key(one) != key(other)


def test_arrays_above_the_limit_are_told_by_identity():
    array = np.ones(2**19, "float64")
    one, other = (built(lambda _, a=a: Scale(a, lambda a: a[0]), 0) for a in (array, array.copy()))
    same = built(lambda _: Scale(array, one.get_factor), 0)
    assert key(one) == key(same) != key(other)


@pytest.mark.long
def test_a_frozen_layer_another_dtype_lora_and_quantization_count():
    def made(change=id, **options):
        layer = keras.layers.Dense(4, **options)
        layer.build((2, 4))
        change(layer)
        return key(layer)

    def freeze(layer):
        layer.trainable = False

    def freeze_bias(layer):
        layer.bias.trainable = False

    plain = made()
    assert made() == plain
    others = [
        made(freeze),
        made(freeze_bias),
        made(lambda layer: layer.enable_lora(1)),
        made(lambda layer: layer.quantize("int8")),
        made(dtype="mixed_bfloat16"),
        made(kernel_regularizer="l2"),
        made(kernel_constraint="non_neg"),
        made(use_bias=False),
    ]
    assert plain not in others
    assert len(set(others)) == len(others)


def test_functions_that_count_their_calls_are_no_loop():
    calls = 0

    def counting(x):
        nonlocal calls
        calls += 1
        return x * (1 + calls % COUNT)

    model, _ = models(lambda _: dense(counting), checkpoints=True)
    assert not has_loop(model)


def test_a_symbolic_tensor_that_a_layer_keeps_does_not_count():
    class Keeps(Scale):
        def call(self, x):
            self.seen = super().call(x)
            return self.seen

    model, plain = models(lambda _: Keeps(2.0), checkpoints=True)
    assert has_loop(model)
    assert_trains_as(plain, model, "graph")


class Counts(Scale):
    def __init__(self, **kwargs):
        super().__init__(2.0, **kwargs)
        self.calls = 0

    def call(self, x):
        self.calls += 1
        self.seen = super().call(x)
        return self.seen


def test_layers_that_count_their_calls_and_keep_results_stay_a_loop():
    """The first of them is traced for all, and all have counted that call, as a warning says."""
    model, plain = models(lambda _: Counts(), checkpoints=True)
    before = [layer.calls for layer in model.layers if isinstance(layer, Counts)]
    assert has_loop(model)
    options = {"mode": "eager", "of_inputs": True, "loss": sum_of_sines}
    with pytest.warns(kr.errors.RecomputeWarning, match="changes 'calls' of 'counts"):
        found = loss_and_gradients(model, X, **options)
    assert has_loop(model)
    counted = [layer.calls for layer in model.layers if isinstance(layer, Counts)]
    assert np.subtract(counted, before).tolist() == [1] * COUNT
    assert_all_close(found, loss_and_gradients(plain, X, **options), rtol=1e-5, atol=1e-5)


def test_a_number_in_bfloat16_is_a_constant_of_calls():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((4,), batch_size=2)
    for _ in range(COUNT):
        x = keras.layers.Dense(4, "tanh", dtype="mixed_bfloat16")(x)
        x = x * keras.ops.cast(keras.ops.sqrt(2.0), x.dtype)  # as Gemma scales its embeddings
    plain = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x))
    model = kr.checkpointed(plain, every=2)
    ours, expected = (loss_and_gradients(each, X, mode="graph") for each in (model, plain))
    assert_all_close(ours, expected)
