"""The loop over time of Keras's recurrent layers, through a function of ours."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_recompute.seams.keras.time_loops import (
    dropout_masks_now,
    replace_time_loops,
    time_loops_are_replaced,
    time_loops_now,
)

X = tf.constant(np.random.default_rng(0).normal(size=(2, 5, 3)), tf.float32)
MASK = tf.constant([[True] * 5, [True, False, True, True, False]])


def noting(seen):
    def run(plain, layer, step, inputs, initial_states, **options):
        seen.append(
            (layer.name, inputs.shape[1], options["go_backwards"], options["mask"] is not None)
        )
        return plain(step, inputs, initial_states, **options)

    return run


@pytest.mark.parametrize("kind", ["SimpleRNN", "GRU", "LSTM"])
def test_a_layer_runs_its_steps_through_the_function_and_returns_what_that_returns(kind):
    layer = getattr(keras.layers, kind)(4, name="layer")
    plain = layer(X, mask=MASK)
    seen = []
    with replace_time_loops(noting(seen)):
        np.testing.assert_array_equal(layer(X, mask=MASK), plain)
    layer(X)
    assert seen == [("layer", 5, False, True)]


def test_layers_of_cells_and_of_two_directions_do_so_too():
    seen = []
    both = keras.layers.Bidirectional(keras.layers.GRU(4, name="gru"))
    stacked = keras.layers.RNN([keras.layers.LSTMCell(4), keras.layers.GRUCell(3)], name="stacked")
    images = keras.layers.ConvLSTM1D(2, 3, name="images")
    with replace_time_loops(noting(seen)):
        both(X)
        stacked(X)
        images(X[..., None])
    names = [name for name, *_ in seen]
    assert names == ["forward_gru", "backward_gru", "stacked", "images"]
    assert [backwards for *_, backwards, _ in seen] == [False, True, False, False]


def test_the_step_returns_an_output_and_states():
    found = []

    def run(plain, _layer, step, inputs, initial_states, **options):
        found.append(step(inputs[:, 0], tuple(initial_states)))
        return plain(step, inputs, initial_states, **options)

    layer = keras.layers.LSTM(4)
    with replace_time_loops(run):
        layer(X)
    output, states = found[0]
    assert output.shape == (2, 4)
    assert [state.shape for state in keras.tree.flatten(states)] == [(2, 4), (2, 4)]


def test_none_is_keras_s_own_loop_also_inside():
    seen = []
    with replace_time_loops(noting(seen)), replace_time_loops(None):
        keras.layers.LSTM(4)(X)
    assert seen == []


def test_whose_loop_it_is_can_be_asked():
    assert not time_loops_are_replaced()
    with replace_time_loops(noting([])):
        assert time_loops_are_replaced()
        with replace_time_loops(None):
            assert not time_loops_are_replaced()


def test_later_they_run_as_they_did():
    seen = []
    with replace_time_loops(noting(seen)):
        then = time_loops_now()
    with then():
        keras.layers.LSTM(4, name="later")(X)
    assert [name for name, *_ in seen] == ["later"]


def test_dropout_masks_of_a_call_are_found_again():
    layer = keras.layers.RNN([keras.layers.LSTMCell(4, recurrent_dropout=0.5)])
    layer.build(X.shape)
    cell = layer.cell.cells[0]
    mask = cell.get_recurrent_dropout_mask(tf.ones((2, 4)))
    then = dropout_masks_now(layer)
    cell.reset_recurrent_dropout_mask()
    with then():
        assert cell.get_recurrent_dropout_mask(tf.ones((2, 4))) is mask
    other = cell.get_recurrent_dropout_mask(tf.ones((2, 4)))
    assert other is not mask
