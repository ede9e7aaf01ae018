"""Tapes, accumulators and the registry of gradients."""

import pytest
import tensorflow as tf

from keras_recompute.seams.tensorflow.gradients import (
    gradient_is_registered,
    has_gradient,
    has_tangents,
    is_recorded,
    is_taped_here,
    library_gradient,
    may_record,
    record_operation,
    registered_gradient,
    set_gradient,
    stop_gradients_to,
    stop_recording,
    unregister_gradient,
)


def test_nothing_is_recorded_where_recording_is_stopped():
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with stop_recording():
            y = x * x
    assert tape.gradient(y, x) is None


def test_a_tape_takes_the_gradient_that_is_recorded():
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with stop_recording():
            y = x * x
        record_operation("Ours", [y], [x], lambda dy: [dy * 7.0])
    assert tape.gradient(y, x) == 7.0


def test_what_a_tape_watches_is_recorded_and_nothing_else():
    x, y = tf.constant(1.0), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        assert is_recorded(x)
        assert not is_recorded(y)
    assert not is_recorded(x)


def test_a_tape_is_known_before_it_watches_anything_and_within_functions():
    found = []
    function = tf.function(lambda: found.append(may_record()))
    assert not may_record()
    with tf.GradientTape() as tape:
        assert may_record()
        function()
        with tape.stop_recording():
            assert not may_record()
    with tf.autodiff.ForwardAccumulator(tf.constant(1.0), tf.constant(1.0)):
        assert may_record()
    assert found == [True]


def test_an_accumulator_gives_tangents_to_what_it_watches():
    x, y = tf.constant(1.0), tf.constant(2.0)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)):
        assert has_tangents([y, x])
        assert not has_tangents([y])


def test_a_gradient_is_found_by_name_until_it_is_forgotten():
    assert gradient_is_registered("Sin")
    name = "GradientOfTheSeamsTest"
    assert not gradient_is_registered(name)
    tf.RegisterGradient(name)(lambda _, dy: dy)
    assert gradient_is_registered(name)
    unregister_gradient(name)
    unregister_gradient(name)
    assert not gradient_is_registered(name)
    tf.RegisterGradient(name)(lambda _, dy: dy)  # a name that is taken would be an error
    unregister_gradient(name)


@pytest.mark.parametrize("kind", ["Sin", "AdjustContrastv2"])
def test_an_operation_without_a_gradient_is_told(kind):
    with tf.Graph().as_default():
        made = {
            "Sin": lambda: tf.sin(1.0),
            "AdjustContrastv2": lambda: tf.image.adjust_contrast(tf.zeros((2, 2, 3)), 2.0),
        }
        made[kind]()
        (operation,) = [
            op for op in tf.compat.v1.get_default_graph().get_operations() if op.type == kind
        ]
        assert has_gradient(operation) == (kind == "Sin")


def test_an_operation_is_given_another_gradient_and_its_own_again():
    name = "GradientOfTheSeamsTest"
    tf.RegisterGradient(name)(
        lambda operation, dy: 7.0 * registered_gradient(operation.type)(operation, dy)
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.constant(0.0)
        y = tf.sin(x)
        set_gradient(y.op, name)
        assert session.run(tf.gradients(y, x)) == [7.0]
        set_gradient(y.op, None)
        assert session.run(tf.gradients(y, x)) == [1.0]
    unregister_gradient(name)
    with pytest.raises(LookupError):
        registered_gradient(name)


def test_gradient_functions_leave_constant_inputs_out():
    with tf.Graph().as_default():
        x, y = tf.ones((2, 3)), tf.ones((2, 1))
        z = x * y
        with stop_gradients_to({z.op: [1]}):
            without, left_out = tf.gradients(z, [x, y])
        of_x, of_y = tf.gradients(z, [x, y])
        with tf.compat.v1.Session() as session:
            assert (session.run(without) == session.run(of_x)).all()
            assert session.run(of_y).tolist() == [[3.0], [3.0]]
    assert left_out is None


def custom_gradient_in(function):
    """Return the name of the custom gradient in the graph of ``function``, and its argument."""
    graph = tf.function(function).get_concrete_function(tf.TensorSpec((2,))).graph
    (name,) = {
        op.get_attr("_gradient_op_type").decode()
        for op in graph.get_operations()
        if op.type == "IdentityN"
    }
    return name, graph.inputs[0]


def test_a_gradient_of_tensorflows_own_is_known_with_what_it_closes_over():
    name, x = custom_gradient_in(tf.nn.silu)
    function, captured = library_gradient(name)
    assert function == "tensorflow.python.ops.nn_impl.swish.<locals>.swish_impl.<locals>.grad"
    beta, features = captured
    assert beta.dtype == tf.float32
    assert features is x


def test_a_users_gradient_is_not_known():
    cubed = tf.custom_gradient(lambda x: (x**3, lambda dy: 3.0 * x * x * dy))
    name, _ = custom_gradient_in(cubed)
    assert library_gradient(name) is None
    assert library_gradient("Sin") is None
    assert library_gradient("NoSuchGradient") is None


def test_where_a_tape_was_opened():
    said = {}

    def note(name):
        said[name] = is_taped_here()

    note("no tape")
    with tf.GradientTape():
        note("eagerly")
        tf.function(lambda: note("a tape around the function"))()

    @tf.function(autograph=False)
    def opens():
        with tf.GradientTape() as tape:
            note("in the function")
            tf.function(lambda: note("in the function around"))()
        del tape

    opens()
    assert said == {
        "no tape": False,
        "eagerly": True,
        "a tape around the function": False,
        "in the function": True,
        "in the function around": False,
    }
