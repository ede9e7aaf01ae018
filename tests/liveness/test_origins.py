"""Who an operation belongs to, by its name."""

from __future__ import annotations

import pytest

from keras_recompute.liveness.categories import buffer_category, optimiser_scopes, variable_category
from keras_recompute.liveness.origins import Names, Origin, default_phase, default_section

NAMES = Names.of_variables(["net/lstm/lstm_cell/kernel", "net/dense_1/bias"], ["adam/iteration"])


@pytest.mark.parametrize(
    ("op_name", "layer"),
    [
        ("net/lstm/MatMul", "net/lstm"),
        # Scopes opened again get a number
        ("net_1/lstm_1/while/lstm_cell_1/MatMul_1", "net/lstm/lstm_cell"),
        ("net_1/dense_1/Add", "net/dense_1"),  # a layer that really has one keeps it
        (
            "net/dropout_2/stateless_dropout/stateless_random_uniform/StatelessRandomUniformV2",
            "net/dropout_2",
        ),
        ("net/dense_1/Tensordot/MatMul/ReadVariableOp", "net/dense_1"),
        ("gradient_tape/net_1/lstm_1/while/net_1/lstm_1/while_grad", "net/lstm"),
        ("gradient_tape/net_1/lstm_1/while/gradients/AddN_4", "net/lstm"),
        ("while/gradients/net_1/lstm_1/while/lstm_cell_1/mul_grad/Mul_1", "net/lstm/lstm_cell"),
        ("recomputation.forward.section-0/net/lstm/MatMul", "net/lstm"),
        # Sections call layers outside of the scope that their weights have
        ("while_1/recomputation.backward.sections-0-3/gradients/lstm/MatMul", "net/lstm"),
        ("recomputation.forward.section-0/lstm/lstm_cell/MatMul", "net/lstm/lstm_cell"),
        # The model's own scope is not in the paths of its variables
        ("functional_1/net_1/lstm/MatMul", "net/lstm"),
        # Nothing tells which of these numbers are real
        ("functional_1/dropout_1/Mul", "functional_1/dropout_1"),
        # Scopes that the engine opens are no layers
        ("gradient_tape/net_1/lstm/MatMul/passed_on/SelectV2", "net/lstm"),
        (
            "recomputation.backward.section-0/gradients/blocks/AddN/passed_on/cond/zeros_like",
            "blocks",
        ),
        ("blocks/again/mul", "blocks"),
        ("adam/Add_3", None),
        ("MatMul", None),
        ("while_1/add_2", None),
    ],
)
def test_layer(op_name, layer):
    assert NAMES.layer(op_name) == layer


@pytest.mark.parametrize(
    ("op_name", "layer"),
    [
        ("dense/MatMul", "dense"),  # the layer itself, and not that of the model inside
        ("only/MatMul", "inside/only"),
        ("both/MatMul", "both"),  # of one of two models: it is not known which
        ("inside/both/MatMul", "inside/both"),
    ],
)
def test_a_layer_is_called_as_its_weights_are_where_only_one_can_be_meant(op_name, layer):
    weights = ["dense", "inside/dense", "inside/only", "inside/both", "other/both"]
    names = Names.of_variables([f"{path}/kernel" for path in weights], ["adam/iteration"])
    assert names.layer(op_name) == layer


@pytest.mark.parametrize(
    ("op_name", "layer"),
    [
        ("functional_1/dense_1/MatMul", "dense"),  # opened once to build, once to call
        ("functional_1/dense_1_2/MatMul", "dense_1"),
        ("functional_1/dense_3/MatMul", "dense"),  # the second call
        ("functional_1/sub_1/dropout_1/stateless_dropout/Mul", "sub/dropout"),
        ("gradient_tape/functional_1/lstm_1/while/functional_1/lstm_1/while_grad", "lstm"),
        ("while_1/recomputation.backward.sections-0-3/lstm_1/again/MatMul", "lstm"),
        ("compile_loss/mse/Mean", "compile_loss"),
        ("functional_1/while/checkpoint/XlaDynamicUpdateSlice", None),
        ("adam/dense_1/Mul", None),
    ],
)
def test_layer_where_all_of_them_are_known(op_name, layer):
    layers = ["compile_loss", "dense", "dense_1", "dropout", "lstm", "sub"]
    names = Names.of_variables(
        ["dense/kernel", "dense_1/kernel", "loss/total"], ["adam/iteration"], layers
    )
    assert names.layer(op_name) == layer
    assert (names.variable_layer("sub/dense"), names.variable_layer("loss")) == ("sub/dense", None)


@pytest.mark.parametrize(
    ("op_name", "phase", "section"),
    [
        ("net/lstm/MatMul", "forward", None),
        ("gradient_tape/net/lstm/MatMul", "backward", None),
        ("recomputation.forward.section-0/lstm/MatMul", "forward", "section-0"),
        ("recomputation.backward.section-0/lstm/MatMul", "recompute", "section-0"),
        ("recomputation.backward.section-0/gradients/lstm/MatMul", "backward", "section-0"),
        ("adam/Sqrt", "update", None),
    ],
)
def test_phase_and_section(op_name, phase, section):
    origin = NAMES.origin(op_name)
    assert (origin.phase, origin.section) == (phase, section)


def test_an_operation_of_a_loop_is_where_the_loop_is():
    loop = NAMES.origin("recomputation.backward.section-1/gradients/net/lstm/while")
    assert NAMES.origin("while/MatMul", loop) == Origin(
        "while/MatMul", "backward", "section-1", "net/lstm"
    )


def test_an_unmarked_operation_is_of_the_phase_around_it():
    assert NAMES.origin("zeros", before="backward").phase == "backward"
    assert NAMES.origin("zeros", inside="backward").phase == "backward"
    assert NAMES.origin(None, before="update").phase == "update"
    # Its layer says what it is
    assert NAMES.origin("net/lstm/MatMul", before="backward").phase == "forward"


@pytest.mark.parametrize(
    ("phases", "phase"),
    [
        ({"recompute", "backward"}, "backward"),
        ({"recompute"}, "backward"),
        ({"forward"}, "forward"),
        ({"forward", "update"}, "forward"),
        ({"forward", "recompute", "backward"}, None),  # a loop over microbatches
        ({"update"}, None),
        (set(), None),
    ],
)
def test_the_phase_of_what_nothing_marks_in_a_body(phases, phase):
    assert default_phase(phases) == phase


@pytest.mark.parametrize(
    ("marks", "section"),
    [
        ({("recompute", "section-0"), ("backward", "section-0")}, "section-0"),
        ({("forward", "section-0")}, "section-0"),
        ({("backward", "section-0"), ("backward", "section-1")}, None),
        ({("backward", "section-0"), ("backward", None)}, None),
        # A loop over microbatches
        ({("forward", "end"), ("recompute", "end"), ("backward", "end")}, None),
        (set(), None),
    ],
)
def test_the_section_of_what_nothing_marks_in_a_body(marks, section):
    assert default_section(marks) == section


@pytest.mark.parametrize(
    ("op_name", "phase", "category"),
    [
        ("net/lstm/MatMul", "forward", "activation"),
        ("net/lstm/MatMul", "recompute", "activation"),
        ("net/lstm/MatMul", "backward", "gradient"),
        ("adam/Sqrt", "update", "optimiser"),
        ("while/checkpoint/TensorListSetItem", "forward", "checkpoint"),
        ("net/recomputation_checkpoint_3/Identity", "forward", "checkpoint"),
        ("net/checkpointed/MatMul", "forward", "activation"),
        (None, None, "other"),
        (None, "backward", "gradient"),
    ],
)
def test_category_of_a_buffer(op_name, phase, category):
    assert buffer_category(op_name, phase) == category


def test_category_of_a_variable():
    scopes = optimiser_scopes(["adam/iteration", "adam/learning_rate", "net/kernel", "iteration"])
    assert scopes == {"adam"}
    assert variable_category("adam/net_kernel_momentum", scopes) == "optimiser"
    assert variable_category("net/kernel", scopes) == "weight"
    assert variable_category("adamant/kernel", scopes) == "weight"


def test_a_copy_of_a_weight_is_of_the_layer_that_has_it():
    """A path of a variable is no scope: its number is the layer's own."""
    paths = ["dense/kernel", "dense_1/kernel", "loss/count"]
    names = Names.of_variables(paths, [], layers=["dense", "dense_1"])
    found = [names.origin(path).layer for path in paths]
    assert found == ["dense", "dense_1", None]
    assert names.origin("functional/dense_1/MatMul").layer == "dense"
