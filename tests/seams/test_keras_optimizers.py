"""What the private parts of Keras's optimizers must do that updates in the backward pass use."""

import keras
import numpy as np
import pytest

from keras_recompute.seams.keras.optimizers import (
    has_undecayed,
    methods_replaced,
    trained_variables,
    update_now,
    updates_in_groups,
    updates_left_out,
)


def built(optimizer):
    variables = [keras.Variable(np.ones(2, "float32"), name=name) for name in ("a", "b")]
    optimizer.build(variables)
    return variables


def values(variables):
    return [keras.ops.convert_to_numpy(variable)[0] for variable in variables]


def test_update_now():
    optimizer = keras.optimizers.SGD(0.5)
    variables = built(optimizer)
    assert [id(v) for v in trained_variables(optimizer)] == list(map(id, variables))
    update_now(optimizer, [keras.ops.ones(2)], variables[1:])
    assert values(variables) == [1.0, 0.5]
    assert int(optimizer.iterations) == 0


@pytest.mark.parametrize("names_variables", [True, False])
def test_updates_left_out(names_variables):
    optimizer = keras.optimizers.SGD(0.5)
    a, b = built(optimizer)
    given = []

    def begin(gradients, variables):
        given.append((list(gradients), list(map(id, variables))))
        return lambda variable: variable is a

    with updates_left_out(optimizer, begin):
        update_now(optimizer, [keras.ops.ones(2)], [a])
        ones = keras.ops.ones(2)
        optimizer.apply([None, ones], *([[a, b]] if names_variables else []))
    assert given[0][1] == [id(a), id(b)]
    assert given[0][0][0] is None
    assert values((a, b)) == [0.5, 0.5]
    assert int(optimizer.iterations) == 1
    optimizer.apply([keras.ops.ones(2)] * 2, [a, b])  # as before again
    assert values((a, b)) == [0.0, 0.0]


def test_methods_replaced():
    optimizer = keras.optimizers.SGD(0.5)
    with methods_replaced(optimizer, apply=lambda: 1, build=lambda: 2):
        assert (optimizer.apply(), optimizer.build()) == (1, 2)
    assert optimizer.apply.__func__ is type(optimizer).apply
    assert not {"apply", "build"} & vars(optimizer).keys()


def test_updates_in_groups():
    groups = []

    class NotedSGD(keras.optimizers.SGD):
        def _backend_update_step(self, grads, trainable_variables, learning_rate):
            groups.append([variable.name for variable in trainable_variables])
            super()._backend_update_step(grads, trainable_variables, learning_rate)

    optimizer = NotedSGD(0.5)
    variables = built(optimizer)
    ones = [keras.ops.ones(2)] * 2
    with updates_in_groups(optimizer, 8, lambda _: 8), updates_in_groups(optimizer, 9, None):
        optimizer.apply(ones, variables)
    assert groups == [["a"], ["b"]]
    with updates_in_groups(optimizer, 9, lambda _: 8):
        optimizer.apply(ones, variables)
    optimizer.apply(ones, variables)
    assert groups[2:] == [["a", "b"], ["a", "b"]]
    assert values(variables) == [-0.5, -0.5]
    assert int(optimizer.iterations) == 3


def test_has_undecayed():
    optimizer = keras.optimizers.AdamW(0.1)
    assert not has_undecayed(optimizer, built(optimizer))
    optimizer = keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_names=["b"])
    assert has_undecayed(optimizer, built(optimizer))
