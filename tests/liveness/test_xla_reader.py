"""What the compiler says of programs whose memory can be computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tensorflow as tf
from small_programs import F32, scan

from keras_recompute.errors import InvalidArgumentError, ReportError
from keras_recompute.liveness import Parameter, Program, profile, read_hlo_proto
from keras_recompute.op_names import backward_scope, forward_scope, update_scope


def named(program: Program, name: str):
    """Return the only buffer called ``name``."""
    (found,) = [b for b in program.buffers if b.name == name]
    return found


def compiled(function):
    return tf.function(function, jit_compile=True, autograph=False)


def test_two_products():
    w, v = tf.Variable(tf.ones((32, 48)), name="w"), tf.Variable(tf.ones((48, 16)), name="v")
    program = profile(
        compiled(lambda x: tf.matmul(tf.matmul(x, w), v)), tf.TensorSpec((64, 32)), input_feed=["x"]
    )
    assert program.input_feed_bytes == 64 * 32 * F32
    assert program.always_live_bytes == (32 * 48 + 48 * 16) * F32
    # the first product is alive while the second, the result, is made
    assert program.timeline.not_always_live_bytes == (64 * 48 * F32, (64 * 48 + 64 * 16) * F32)
    assert program.peak_step == 1
    assert program.peak_bytes == (32 * 48 + 48 * 16 + 64 * 48 + 64 * 16) * F32
    assert program.allocated_temporary_bytes == (64 * 48 + 64 * 16) * F32
    assert program.fragmentation_bytes == 0
    assert program.compiler_totals["untraced_temporary_bytes"] == 0
    assert [(b.size_bytes, b.lifetime) for b in program.top_buffers(4)] == [
        (64 * 48 * F32, "temporary"),
        (32 * 48 * F32, "always-live"),
        (64 * 16 * F32, "result"),
        (48 * 16 * F32, "always-live"),
    ]
    assert program.program_instructions == 5  # three parameters, two products
    assert program.compile_seconds > 0


def test_a_variable_updated_in_place_is_no_result():
    w = tf.Variable(tf.ones((32, 48)), name="w")

    def step(x):
        w.assign_sub(tf.matmul(x, tf.matmul(x, w), transpose_a=True))
        return tf.reduce_sum(w)

    program = profile(compiled(step), tf.TensorSpec((64, 32)), input_feed=["x"])
    results = [b.size_bytes for b in program.buffers if b.lifetime == "result"]
    # The sum, and the table of two pointers to the results; not w again
    assert sorted(results) == [F32, 2 * 8]
    assert named(program, "w").category == "weight"
    # X @ w and the gradient of w
    assert program.not_always_live_peak_bytes == (64 * 48 + 32 * 48) * F32


def test_a_result_is_called_after_what_makes_it():
    program = profile(compiled(lambda x: x @ x @ x @ x), tf.TensorSpec((32, 32)), input_feed=["x"])
    # the third product takes the place of the first: two places for three values
    assert program.allocated_temporary_bytes == 2 * 32 * 32 * F32
    results = [
        (b.op_name, b.first_step, b.last_step) for b in program.buffers if b.lifetime == "result"
    ]
    assert results == [("matmul", 0, 1), ("matmul_2", 2, 2)]


def test_the_body_of_a_loop_counts_once_and_its_stack_in_full():
    short, long = (profile(scan(n), tf.TensorSpec((64, 32)), input_feed=["x"]) for n in (8, 32))
    assert short.program_steps == long.program_steps
    state = 64 * 32 * F32
    # the stack and its square, the last state, and the sum
    assert short.not_always_live_peak_bytes == 2 * 8 * state + state + F32
    assert long.not_always_live_peak_bytes == 2 * 32 * state + state + F32
    stack = max(
        (b for b in long.buffers if b.op_name and "TensorArrayV2Write" in b.op_name),
        key=lambda b: b.size_bytes,
    )
    assert stack.size_bytes == 32 * state


def test_parameters_are_told_apart():
    w, captured = tf.Variable(tf.ones((64, 64)), name="w"), tf.ones((64, 128))

    def function(x, count, data, variable, flag=True, factor=2.0):
        y = tf.reshape(x, (count, -1)) @ w @ variable @ captured
        return y * factor + data["a"][0] + tf.reduce_sum(data["b"]) if flag else y

    program = profile(
        compiled(function),
        tf.TensorSpec((32, 64)),
        tf.constant(32),  # folded into the program: a shape must be known
        {"b": tf.TensorSpec((3,)), "a": (tf.ones(()),)},
        tf.Variable(tf.ones((64, 64)), name="argument"),
        input_feed=["x", "data"],
    )
    parameters = {
        b.name: (b.size_bytes, b.category, b.lifetime)
        for b in program.buffers
        if b.category in ("weight", "input")
    }
    assert parameters == {
        "x": (32 * 64 * F32, "input", "input-feed"),
        "data[0]": (F32, "input", "input-feed"),
        "data[1]": (3 * F32, "input", "input-feed"),
        "variable": (64 * 64 * F32, "weight", "always-live"),
        "w": (64 * 64 * F32, "weight", "always-live"),
        "matmul_2/b": (64 * 128 * F32, "input", "always-live"),
    }


def test_a_single_tensor_is_fed_by_its_number():
    function = compiled(lambda x, y: tf.matmul(x, y) * 2.0)
    specs = tf.TensorSpec((8, 4)), tf.TensorSpec((4, 2))
    assert profile(function, *specs).input_feed_bytes == 0
    assert profile(function, *specs, input_feed=[1]).input_feed_bytes == 4 * 2 * F32
    assert profile(function, *specs, input_feed=[0, "y"]).input_feed_bytes == (8 * 4 + 4 * 2) * F32


@pytest.mark.parametrize("wanted", ["z", 2, -1, "w"])
def test_a_feed_that_is_no_data_argument_is_refused(wanted):
    w = tf.Variable(tf.ones((4, 2)), name="w")
    with pytest.raises(InvalidArgumentError, match=r"0: x"):
        profile(compiled(lambda x: x @ w), tf.TensorSpec((8, 4)), input_feed=[wanted])


def test_a_plain_function_is_compiled():
    assert profile(lambda x: x * 2.0, tf.ones(1000)).peak_bytes >= 2 * 1000 * F32
    assert profile(tf.function(lambda x: x * 2.0), tf.ones(1000)).program_steps == 1


def test_keras_names_and_categories(training_program):
    program = training_program
    kernel = 16 * 64 * F32
    assert named(program, "lstm/lstm_cell/recurrent_kernel").size_bytes == kernel
    assert named(program, "lstm/lstm_cell/recurrent_kernel").layer == "lstm/lstm_cell"
    optimiser = {
        b.name for b in program.buffers if b.category == "optimiser" and b.lifetime == "always-live"
    }
    assert {"adam/iteration", "adam/learning_rate", "adam/head_kernel_momentum"} <= optimiser
    # two slots per weight, and the two scalars
    assert len(optimiser) == 2 * 5 + 2
    assert {b.layer for b in program.buffers if b.lifetime == "temporary"} >= {
        "lstm",
        "lstm/lstm_cell",
        "head",
    }
    assert {step.phase for step in program.steps} == {"forward", "backward", "update"}
    assert program.input_feed_bytes == 4 * 32 * (8 + 1) * F32
    assert program.named_share_at_peak() >= 0.95


def test_phases_and_sections_come_from_the_scopes():
    w = tf.Variable(tf.ones((32, 32)), name="w")

    def step(x):
        with tf.name_scope(forward_scope("section-3")):
            y = tf.matmul(x, w)
        with tf.name_scope(backward_scope("section-3")):
            z = tf.matmul(y, y, transpose_a=True)
            with tf.name_scope("gradients"):
                g = tf.matmul(z, z)
        with tf.name_scope(update_scope()):
            w.assign(tf.matmul(g, w))

    program = profile(compiled(step), tf.TensorSpec((64, 32)))
    assert [(s.phase, s.section) for s in program.steps if s.instruction.startswith("MatMul")] == [
        ("forward", "section-3"),
        ("recompute", "section-3"),
        ("backward", "section-3"),
        ("update", None),
    ]
    made = {b.phase: b.category for b in program.buffers if b.lifetime == "temporary"}
    assert made["forward"] == made["recompute"] == "activation"
    assert made["backward"] == "gradient"


def test_a_loop_in_the_backward_pass_lends_its_phase_to_what_it_carries():
    def function(x):
        def body(i, total):
            # The first of the body, and marked by nothing
            scaled = tf.tanh(x * tf.cast(i, tf.float32))
            with tf.name_scope(backward_scope("sections-0-3")), tf.name_scope("gradients"):
                piece = tf.matmul(scaled, x)
            return i + 1, total + piece

        return tf.while_loop(
            lambda i, _: i < 4, body, (0, tf.zeros((32, 32))), maximum_iterations=4
        )[1]

    program = profile(compiled(function), tf.TensorSpec((32, 32)), input_feed=["x"])
    assert {s.phase for s in program.steps if s.op_name and s.op_name.startswith("while/")} == {
        "backward"
    }
    total = [
        b for b in program.buffers if b.size_bytes == 32 * 32 * F32 and b.lifetime != "input-feed"
    ]
    assert {b.category for b in total} == {"gradient"}


@pytest.mark.parametrize("returned", [True, False])
def test_what_outlives_a_replayed_section_is_no_activation_of_it(returned):
    def function(x):
        def body(i, total):
            with tf.name_scope(backward_scope("sections-0-3")):
                total = total + tf.matmul(x, x)
            return i + 1, total

        total = tf.while_loop(lambda i, _: i < 4, body, (0, tf.exp(x)), maximum_iterations=4)[1]
        return total if returned else tf.reduce_max(total)

    program = profile(compiled(function), tf.TensorSpec((32, 32)), input_feed=["x"])
    made = {
        b.op_name.rsplit("/", 1)[-1]: b
        for b in program.buffers
        if b.lifetime in ("temporary", "result") and b.size_bytes == 32 * 32 * F32
    }
    assert (made["MatMul"].phase, made["MatMul"].category) == ("recompute", "activation")
    assert (made["add"].phase, made["add"].category) == ("backward", "gradient")
    # the same place held exp(x) before the loop
    assert made["Exp"].last_step == made["add"].first_step - 1
    assert made["add"].section == "sections-0-3"


def test_a_gradient_written_by_hand_belongs_to_its_layer_and_to_the_backward_pass():
    w = tf.Variable(tf.ones((64, 32)), name="lstm/w")

    @tf.custom_gradient
    def recurrence(x):
        def forward(i, x, states):
            return i + 1, tf.tanh(tf.matmul(x, x, transpose_b=True) @ x), states.write(i, x)

        states = tf.TensorArray(tf.float32, 8, element_shape=(64, 32))
        states = tf.while_loop(lambda i, *_: i < 8, forward, (0, x, states), maximum_iterations=8)[
            2
        ].stack()

        def gradient(d_states):
            def backward(i, d, kept):
                return (
                    i + 1,
                    tf.matmul(states[i], d, transpose_b=True) @ d_states[i],
                    kept.write(i, d),
                )

            kept = tf.TensorArray(tf.float32, 8, element_shape=(64, 32))
            loop = tf.while_loop(
                lambda i, *_: i < 8, backward, (0, d_states[7], kept), maximum_iterations=8
            )
            return tf.reduce_sum(loop[2].stack() * states, axis=0)

        return states, gradient

    def step(x):
        with tf.GradientTape() as tape:
            with tf.name_scope("lstm"):
                states = recurrence(x * w)
            loss = tf.reduce_mean(states**2)
        gradient = tape.gradient(loss, w)
        with tf.name_scope(update_scope()):
            w.assign_sub(gradient)
        return loss

    program = profile(compiled(step), tf.TensorSpec((64, 32)), input_feed=["x"])
    assert {
        s.phase for s in program.steps if s.op_name and s.op_name.startswith("lstm/while/")
    } == {"forward"}
    assert {s.phase for s in program.steps if s.op_name and s.op_name.startswith("while/")} == {
        "backward"
    }
    stacks = {
        b.phase: b
        for b in program.buffers
        if b.size_bytes == 8 * 64 * 32 * F32 and "TensorArrayV2Write" in (b.op_name or "")
    }
    assert {phase: (b.category, b.layer) for phase, b in stacks.items()} == {
        "forward": ("activation", "lstm"),
        "backward": ("gradient", "lstm"),
    }
    # TensorFlow's own lines, which XLA is told, say nothing of the model.
    assert {b.source.rpartition(":")[0] for b in program.buffers if b.source} == {__file__}


def test_a_store_belongs_to_the_layer_whose_values_it_holds():
    def function(x):
        states = tf.TensorArray(tf.float32, 8, element_shape=(64, 32))

        def body(i, x, states):
            with tf.name_scope("lstm"):
                x = tf.matmul(tf.matmul(x, x, transpose_b=True), x)
            return i + 1, x, states.write(i, x)

        _, x, states = tf.while_loop(
            lambda i, *_: i < 8, body, (0, x, states), maximum_iterations=8
        )
        return tf.reduce_sum(tf.matmul(states.stack(), x, transpose_b=True))

    program = profile(compiled(function), tf.TensorSpec((64, 32)), input_feed=["x"])
    (stack,) = [b for b in program.buffers if b.size_bytes == 8 * 64 * 32 * F32]
    assert stack.layer == "lstm"
    assert "lstm" not in stack.op_name


def test_what_a_checkpoint_scope_stores_is_a_checkpoint():
    def function(x):
        states = tf.TensorArray(tf.float32, 8, element_shape=(64, 32))

        def body(i, x, states):
            with tf.name_scope("checkpoint"):
                states = states.write(i, x)
            return i + 1, tf.tanh(tf.matmul(x, x, transpose_b=True) @ x), states

        _, x, states = tf.while_loop(
            lambda i, *_: i < 8, body, (0, x, states), maximum_iterations=8
        )
        return tf.reduce_sum(tf.matmul(states.stack(), x, transpose_b=True))

    program = profile(compiled(function), tf.TensorSpec((64, 32)))
    assert [b.size_bytes for b in program.buffers if b.category == "checkpoint"] == [
        8 * 64 * 32 * F32
    ]


def test_a_stored_program_reads_the_same(scan_bytes, scan_program):
    parameters = [Parameter("x", "input", fed=True), Parameter("u", "weight")]
    stored = read_hlo_proto(scan_bytes, parameters=parameters)
    assert stored.timeline == scan_program.timeline
    # Only lines of the user's code are not in the compiler's program.
    assert stored.top_buffers(5) == tuple(
        replace(b, source=None) for b in scan_program.top_buffers(5)
    )


def test_without_a_description_an_unknown_parameter_is_other(scan_bytes):
    program = read_hlo_proto(scan_bytes)
    assert program.input_feed_bytes == 0
    # x, u and three constants
    assert program.always_live_bytes == (64 * 32 + 32 * 32) * F32 + 3 * F32
    assert {b.category for b in program.buffers if b.lifetime == "always-live"} == {"other"}


def test_a_description_of_another_program_is_refused(scan_bytes):
    with pytest.raises(ReportError, match="belong to different programs"):
        read_hlo_proto(scan_bytes, parameters=[Parameter("x", size_bytes=12), Parameter("u")])
    with pytest.raises(ReportError, match="belong to different programs"):
        read_hlo_proto(scan_bytes, parameters=[Parameter("x")])


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"no program", "text", None])
def test_bytes_that_are_no_program_are_refused(data):
    with pytest.raises(ReportError):
        read_hlo_proto(data)


def test_calls_too_deep_are_refused():
    from tensorflow.compiler.xla.service import hlo_pb2

    proto = hlo_pb2.HloProto()
    module = proto.hlo_module
    module.entry_computation_id = 1
    for number in range(1, 5000):
        computation = module.computations.add(id=number, root_id=number)
        called = [number + 1] if number < 4999 else []
        computation.instructions.add(
            id=number, name=f"call.{number}", opcode="call", called_computation_ids=called
        )
        module.schedule.sequences[number].instruction_ids.append(number)
    proto.buffer_assignment.buffer_allocations.add(index=0, size=4)
    with pytest.raises(ReportError, match="RecursionError"):
        read_hlo_proto(proto.SerializeToString())
