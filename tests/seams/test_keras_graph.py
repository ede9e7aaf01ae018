"""The graph of a functional Keras model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.seams.keras.graph import (
    GRAPH_OF_MODEL,
    CloneObserver,
    Functional,
    GraphRunner,
    call_nodes,
    flat_inputs,
    functional_like_constructor,
    functional_of_sequential,
    has_call_of,
    nodes_of,
    nodes_of_operation,
    observe_new_models,
    observe_runs,
    producing_node,
    run_graph,
    runs_plain_graph,
    tracked_layers,
)
from keras_recompute.seams.keras.layers import TRACKING_PREFIX


@pytest.fixture
def model():
    """Two inputs in a dict, a dense layer called on each, and a dict of one sum."""
    inputs = {"a": keras.Input((2,), name="a"), "b": keras.Input((2,), name="b")}
    dense = keras.layers.Dense(2, name="dense", kernel_initializer="identity")
    total = keras.layers.Add(name="total")([dense(inputs["a"]), dense(inputs["b"])])
    return keras.Model(inputs, {"sum": total})


def test_what_keras_makes_of_inputs_and_outputs_is_functional(model):
    assert type(model) is Functional


def test_the_graph_is_all_that_a_functional_model_has_beside_what_every_model_has(model):
    own = set(vars(model)) - set(vars(keras.Model()))
    assert (
        {name for name in own if not name.startswith(TRACKING_PREFIX)}
        <= GRAPH_OF_MODEL
        <= set(vars(model))
    )


def test_nodes_come_in_running_order(model):
    assert [node.operation.name for node in nodes_of(model)][-3:] == ["dense", "dense", "total"]
    assert [node.is_input for node in nodes_of(model)] == [True, True, False, False, False]
    assert [node.operation.name for node in call_nodes(model)] == ["dense", "dense", "total"]


def test_nodes_say_what_they_read_make_and_are_called_with(model):
    *_, add = call_nodes(model)
    assert (
        add.arguments.args[0]
        == add.input_tensors
        == [call.outputs[0] for call in call_nodes(model)[:2]]
    )
    assert add.parent_nodes == call_nodes(model)[:2]


def test_a_tensor_leads_to_the_node_that_made_it(model):
    dense = model.get_layer("dense")
    assert nodes_of_operation(dense) == call_nodes(model)[:2]
    assert [producing_node(call.outputs[0]) for call in call_nodes(model)] == call_nodes(model)
    assert producing_node(model.inputs[0]).is_input


def test_a_sequential_model_runs_a_functional_one_once_it_is_built():
    model = keras.Sequential([keras.layers.Dense(2)])
    assert functional_of_sequential(model) is None
    model.build((None, 3))
    assert isinstance(functional_of_sequential(model), Functional)


def test_inputs_and_outputs_keep_the_nest_in_which_they_were_given(model):
    assert {name: t.name for name, t in model.input.items()} == {"a": "a", "b": "b"}
    assert model.output["sum"] is model.outputs[0]


def test_inputs_are_handed_on_in_order_and_of_the_type_of_the_model(model):
    one, two = flat_inputs(
        model, {"b": tf.zeros((3, 2), tf.float64), "a": tf.ones((3, 2), tf.float64)}
    )
    assert one.dtype == two.dtype == tf.float32
    assert float(one[0, 0]) == 1
    x = keras.Input((2, 1))
    assert flat_inputs(keras.Model(x, keras.layers.Identity()(x)), tf.zeros((3, 2)))[0].shape == (
        3,
        2,
        1,
    )


def test_each_call_of_an_operation_is_ours_when_a_graph_is_run(model):
    called = []

    def call(operation, *args, **kwargs):
        called.append(operation.name)
        return operation(*args, **kwargs)

    inputs = [tf.ones((1, 2)), tf.ones((1, 2))]
    assert run_graph(model, inputs)["sum"].numpy().tolist() == [[2, 2]]
    results = run_graph(model, inputs, call)
    assert called == ["dense", "dense", "total"]
    assert results["sum"].numpy().tolist() == [[2, 2]]


def test_layers_are_tracked_in_the_order_of_the_graph():
    x = keras.Input((2,))
    model = keras.Model(x, keras.layers.Dense(3, name="two")(keras.layers.Dense(2, name="one")(x)))
    assert [layer.name for layer in tracked_layers(model)][1:] == ["one", "two"]


class Negated(GraphRunner, keras.Model):
    def run_by_graph(self, inputs, plain):  # noqa: ARG002
        outputs = plain()
        return -outputs if isinstance(outputs, tf.Tensor) else outputs


def test_a_model_is_asked_to_run_its_graph():
    x = keras.Input((1,))
    y = keras.layers.Rescaling(3.0)(x)
    assert float(Negated(x, y)(tf.ones((1, 1)))[0, 0]) == -3


class Noting(CloneObserver, keras.Model):
    def note_clones(self, taken, outputs):
        self.noted = taken, outputs


def test_a_model_is_told_of_its_clones():
    x = keras.Input((1,))
    layer = keras.layers.Rescaling(3.0)
    model = Noting(x, layer(x))
    clone = keras.models.clone_model(
        model, clone_function=lambda _: keras.layers.Rescaling(2.0, name="double")
    )
    taken, outputs = model.noted
    assert taken[layer] is clone.get_layer("double")
    assert keras.tree.flatten(outputs)[0] is clone.outputs[0]


def test_a_model_that_computes_by_a_method_of_its_own_does_not_run_its_graph():
    class OwnCall(keras.Model):
        def call(self, inputs, training=None, mask=None):
            return super().call(inputs, training, mask)

    x = keras.Input((1,))
    y = keras.layers.Rescaling(3.0)(x)
    assert runs_plain_graph(keras.Model(x, y), ours=())
    assert runs_plain_graph(Negated(x, y), ours=())
    assert not runs_plain_graph(OwnCall(x, y), ours=())
    assert runs_plain_graph(OwnCall(x, y), ours=(__name__,))
    assert not runs_plain_graph(keras.Sequential([keras.layers.Dense(1)]), ours=())


def test_whether_a_model_is_called_as_its_class_of_keras():
    class Kept(keras.Sequential):
        pass

    class OwnCall(keras.Sequential):
        def call(self, inputs, training=None, mask=None):
            return super().call(inputs, training=training, mask=mask)

    assert has_call_of(keras.Sequential, keras.Sequential())
    assert has_call_of(keras.Sequential, Kept())
    assert not has_call_of(keras.Sequential, OwnCall())


def test_a_constructor_with_inputs_and_outputs_is_told():
    class OwnArguments(keras.Model):
        def __init__(self, units):
            super().__init__()
            self.units = units

    assert functional_like_constructor(keras.Model)
    assert not functional_like_constructor(OwnArguments)


def test_new_models_and_their_runs_are_noted(monkeypatch):
    monkeypatch.setattr(Functional, "__init__", Functional.__init__)
    made, runs = [], []
    observe_new_models(made.append)
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    inside = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert model in made
    assert functional_of_sequential(inside) in made
    observe_runs(model, lambda: runs.append(1))
    model(np.ones((1, 2)))
    model.predict(np.ones((1, 2)), verbose=0)
    assert len(runs) == 2


def test_a_constructor_is_as_much_like_keras_own_as_before(monkeypatch):
    class OfOneArgument(keras.Model):
        def __init__(self, units):
            inputs = keras.Input((2,))
            super().__init__(inputs, keras.layers.Dense(units)(inputs))

    kinds = (keras.Model, Functional, keras.Sequential, OfOneArgument)
    before = [functional_like_constructor(kind) for kind in kinds]
    monkeypatch.setattr(Functional, "__init__", Functional.__init__)
    observe_new_models(lambda _: None)
    assert [functional_like_constructor(kind) for kind in kinds] == before
