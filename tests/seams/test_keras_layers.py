"""What Keras layers hold and hand on."""

import keras
import pytest
import tensorflow as tf

from keras_recompute.seams.keras.call_context import (
    autocast_dtype,
    autocast_to,
    current_training,
    entry_layer,
    is_symbolic,
    stateless_scope,
    stateless_values,
)
from keras_recompute.seams.keras.layers import (
    BOOKKEEPING,
    CALL_RESULTS,
    CALL_SETTINGS,
    TRACKING_PREFIX,
    TRAINING_STATE,
    VARIABLE_BOOKKEEPING,
    MutableState,
    add_losses,
    arguments_from_context,
    attach_mask,
    backend_variable,
    copy_losses,
    global_seed_generator,
    is_in_remat_scope,
    is_trainable_itself,
    layers_in,
    losses_of,
    mask_of,
    move_losses,
    mutable_state,
    remove_losses,
    set_trainable_itself,
    takes_training,
)


def test_names_of_attributes_are_those_of_keras():
    assert set(vars(keras.layers.Dense(1))) >= CALL_SETTINGS
    assert set(vars(keras.layers.Dense(1))) >= set(CALL_RESULTS)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    x = tf.zeros((2, 2))
    y = tf.zeros((2, 1))
    model.compile("sgd", "mse")
    seen = []
    look = keras.callbacks.LambdaCallback(on_test_end=lambda _: seen.append(set(vars(model))))
    model.fit(x, y, validation_data=(x, y), callbacks=[look], verbose=0)
    assert seen[0] >= TRAINING_STATE


def test_what_every_layer_has_is_bookkeeping_or_decides_its_calls():
    """A name that a new version of Keras adds counts until it is listed as bookkeeping."""
    layer = keras.layers.Layer()
    layer.inner = keras.layers.Layer()
    names = {name for name in vars(layer) if not name.startswith(TRACKING_PREFIX)} - {"inner"}
    only_sometimes = {"_auto_config_error_args", "_input_shape_arg"}
    assert names >= BOOKKEEPING - only_sometimes
    assert names - BOOKKEEPING == {
        "_allow_non_tensor_positional_args", "_call_context_args", "_call_has_context_arg",
        "_call_has_mask_arg", "_call_has_training_arg", "_convert_input_args", "_dtype_policy",
        "_input_spec", "_layers", "_metrics", "_non_trainable_variables", "_remat_mode",
        "_seed_generators", "_supports_masking", "_trainable", "_trainable_variables",
        "activity_regularizer", "autocast",
    }  # fmt: skip


def test_a_variable_has_a_name_and_a_value_that_are_left_out():
    assert set(vars(keras.Variable(1.0))) >= VARIABLE_BOOKKEEPING


def test_layers_inside_are_found():
    inner = keras.layers.Dense(1)
    outer = keras.layers.TimeDistributed(inner)
    assert layers_in(outer) == [outer, inner]
    assert layers_in(outer, include_self=False) == [inner]


def test_what_calls_change_is_found():
    """Statistics and generators, with whether their seed was given; no weight, also where it is
    frozen.
    """
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, name="dense"), keras.layers.BatchNormalization()]
    )
    model.add(keras.layers.Dropout(0.5, seed=7))
    model.add(keras.Sequential([keras.layers.Dropout(0.5)]))
    model.get_layer("dense").trainable = False
    found = mutable_state(model)
    assert isinstance(found, MutableState)
    assert [v.name for v in found.variables] == ["moving_mean", "moving_variance"]
    own = [
        (g.state.numpy()[0] == 7, is_given)
        for g, is_given in found.generators
        if g.state.path.startswith("dropout")
    ]
    keras.random.uniform((1,))  # makes Keras's own generator
    of_keras = mutable_state(model).generators[-1]
    assert not of_keras[1]
    before = of_keras[0].state.numpy()
    keras.random.uniform((1,))
    assert (of_keras[0].state.numpy() != before).any()
    assert sorted(own) in ([], [(False, False), (True, True)])
    assert [is_given for _, is_given in found.generators][:2].count(True) == 1


def test_a_layer_keeps_the_losses_of_its_last_call():
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x))
            return x

    layer = Adds()
    layer(tf.ones((3,)))
    (loss,) = losses_of(layer)
    assert float(loss) == 3
    remove_losses(layer, [loss])
    assert layer.losses == []
    add_losses(layer, [loss])
    assert layer.losses == [loss]


@pytest.mark.parametrize("collect", [True, False])
def test_in_a_stateless_scope_losses_stand_in_the_scope(collect):
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x))
            return x

    layer, other = Adds(), Adds()
    with keras.StatelessScope(collect_losses=collect) as scope:
        layer(tf.ones((3,)))
        found = losses_of(layer)
        assert [float(loss) for loss in found] == ([3.0] if collect else [])
        assert losses_of(other) == []
        remove_losses(layer, found)
        assert scope.losses == layer.losses == []
        added = tf.constant(2.0)
        add_losses(other, [added])
        assert other.losses == scope.losses == ([added] if collect else [])


def test_a_mask_that_is_hung_on_is_found_by_layers_behind():
    x = keras.layers.Masking()(tf.constant([[[1.0], [0.0]]]))
    assert mask_of(x).numpy().tolist() == [[True, False]]
    assert mask_of(tf.zeros(2)) is None
    x = tf.constant([[[1.0], [2.0]]])
    attach_mask(x, tf.constant([[True, False]]))
    assert float(keras.layers.GlobalAveragePooling1D()(x)[0, 0]) == 1


def test_the_variable_of_tensorflow_is_found_in_mixed_precision():
    layer = keras.layers.Dense(1, dtype="mixed_float16")
    layer.build((None, 2))
    assert isinstance(backend_variable(layer.kernel), tf.Variable)
    assert backend_variable(layer.kernel).dtype == tf.float32


def test_the_generator_of_keras_is_known_once_it_was_drawn_from():
    keras.utils.clear_session()
    assert global_seed_generator() is None
    keras.random.normal((1,))
    made = global_seed_generator()
    assert isinstance(made, keras.random.SeedGenerator)
    keras.random.normal((1,))
    assert global_seed_generator() is made


def test_what_trainable_was_set_to_is_apart_from_weights():
    layer = keras.layers.Dense(2)
    layer.build((None, 2))
    assert is_trainable_itself(layer)
    set_trainable_itself(layer, False)
    assert not is_trainable_itself(layer)
    assert not layer.trainable
    assert layer.kernel.trainable


def test_a_layer_says_whether_it_takes_training():
    assert takes_training(keras.layers.Dropout(0.5))
    assert not takes_training(keras.layers.Flatten())
    assert not takes_training(keras.ops.sin)


def test_arguments_that_an_outer_call_sets_are_named():
    assert set(arguments_from_context(keras.layers.Dropout(0.5))) <= {"training"}
    assert not arguments_from_context(keras.ops.sin)


def test_a_layer_says_whether_it_was_made_in_a_scope_of_rematerialization():
    assert not is_in_remat_scope(keras.layers.Dense(1))
    with keras.RematScope(mode="full"):
        assert is_in_remat_scope(keras.layers.Dense(1))


class Looks(keras.layers.Layer):
    def call(self, x):
        self.seen = current_training(), autocast_dtype()
        return x


def test_a_call_passes_on_whether_it_trains_and_the_type_to_cast_to():
    assert current_training() is None
    assert autocast_dtype() is None
    for dtype, cast in (("float32", None), ("mixed_float16", "float16")):
        layer = Looks(dtype=dtype)
        for training in (True, False):
            keras.Sequential([layer])(tf.zeros((1, 1)), training=training)
            assert layer.seen[0] is training
            assert layer.seen[1] in (cast, dtype)


def test_variables_are_cast_as_a_context_says():
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    with autocast_to("float16"):
        assert layer.kernel.value.dtype == tf.float16
        with autocast_to(None):
            assert layer.kernel.value.dtype == tf.float32


def test_the_layer_called_first_is_known_and_losses_are_moved():
    class Inner(keras.layers.Layer):
        def call(self, x):
            seen.append(entry_layer())
            self.add_loss(tf.reduce_sum(x))
            return x

    seen = []
    inner, other = Inner(), Inner()
    model = keras.Sequential([inner])
    model(tf.ones((1, 2)))
    assert seen[-1] is model
    assert entry_layer() is None
    copy_losses(inner, other)
    assert [float(loss) for loss in other.losses] == [float(loss) for loss in inner.losses] == [2.0]
    other.losses.clear()
    copy_losses(keras.layers.Dense(1), other)
    move_losses(inner, other)
    assert [float(loss) for loss in other.losses] == [2.0]
    assert not inner.losses


def test_a_symbolic_call_is_told():
    seen = []

    class Look(keras.layers.Layer):
        def call(self, x):
            seen.append(is_symbolic())
            return x

    layer = Look()
    layer(keras.Input((2,)))
    layer(tf.zeros((1, 2)))
    assert seen == [True, False]


def test_the_values_of_a_stateless_scope_are_known():
    variable = keras.Variable(1.0)
    assert stateless_scope() is None
    assert stateless_values() == {}
    with keras.StatelessScope(state_mapping=[(variable, tf.constant(2.0))]) as scope:
        assert stateless_scope() is scope
        (key,) = stateless_values()
        stateless_values()[key] = tf.constant(3.0)
        assert float(variable.value) == 3.0
    assert float(variable.value) == 1.0
