"""Records of programs that JAX compiles: sizes, names by layer, phase and section, sources."""

import runpy
from collections import Counter

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from plain_oracle import every

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, RecomputeWarning, UnsupportedError
from keras_recompute.liveness.jax_training_step import training_step

L = keras.layers
BATCH, WIDTH = 512, 64


def network(layers=6):
    names = [L.Dense(WIDTH, "gelu", name=f"dense_{n}" if n else "dense") for n in range(layers)]
    return keras.Sequential([keras.Input((WIDTH,)), *names, L.Dense(8, name="head")], name="net")


def compiled(model, optimizer="adam"):
    model.compile(optimizer, "mse")
    return model


def batch():
    return np.zeros((BATCH, WIDTH)), np.zeros((BATCH, 8))


@pytest.fixture(scope="module")
def program():
    return kr.liveness.profile(compiled(every(2)(network())), *batch())


def test_temporaries_are_those_that_jax_states(program):
    stated = program.compiler_totals
    # Results that overwrite no argument: the loss, and the table of all results.
    results = stated["stated_output_bytes"] - stated["stated_alias_bytes"]
    assert program.allocated_temporary_bytes == stated["stated_temp_bytes"] + results
    assert program.compiled_by == f"XLA of jax {jax.__version__}"


def test_buffers_are_those_of_optimised_machine_code():
    model = compiled(every(2)(network()))
    record = kr.liveness.profile(model, *batch())
    step = training_step(model, batch())
    lowered = step.function.lower(step.state, step.data)
    read, trained = (
        lowered.compile(compiler_options={"xla_backend_optimization_level": level})
        for level in (0, 3)
    )
    assert read.as_text() == trained.as_text()
    stated = record.compiler_totals["stated_temp_bytes"]
    assert stated == trained.memory_analysis().temp_size_in_bytes


def test_a_step_without_a_loss_is_warned_of():
    x = np.zeros((4, WIDTH))
    model = network()
    model.compile("adam")
    with pytest.warns(RecomputeWarning, match="'net' has no loss, so its step trains nothing"):
        kr.liveness.profile(model, x)
    model = keras.Sequential([*network().layers, L.ActivityRegularization(0.1)])
    model.compile("adam")
    kr.liveness.profile(model, x)


def test_parameters_are_weights_states_and_the_batch(program):
    always = [b for b in program.buffers if b.lifetime == "always-live" and b.size_bytes > 64]
    sizes = Counter()
    for buffer in always:
        sizes[buffer.category] += buffer.size_bytes
    count = 6 * (WIDTH * WIDTH + WIDTH) + WIDTH * 8  # biases of the head take 32 bytes
    assert sizes["weight"] == 4 * count
    assert sizes["optimiser"] == 2 * 4 * count  # momentum and velocity of Adam
    assert program.input_feed_bytes == 4 * BATCH * (WIDTH + 8)
    # Keras numbers optimizers: "adam_1" if there was another one.
    named = {b.name.partition("/")[2]: b.layer for b in always}
    assert named["dense_3/kernel"] == "net/dense_3"
    assert named["net_dense_3_kernel_velocity"] == "net/dense_3"


def test_steps_have_phases_sections_and_layers(program):
    found = {(step.phase, step.section) for step in program.steps}
    for section in ("section-0", "section-1", "section-2"):
        for phase in ("forward", "recompute", "backward"):
            assert (phase, section) in found
    assert ("update", None) in found
    replays = {step.layer for step in program.steps if step.phase == "recompute"}
    # Scopes are not numbered anew, as TensorFlow's are: "dense_1" is not "dense" a second time.
    # And layers are called as their weights are, by the name of the Sequential too.
    assert {"net/dense", "net/dense_2", "net/dense_4"} <= replays


def test_checkpoints_lower_the_peak_of_the_whole_step(program):
    plain = kr.liveness.profile(compiled(network()), *batch())
    assert program.allocated_temporary_bytes < 0.6 * plain.allocated_temporary_bytes


def test_nothing_is_trained_and_fit_goes_on():
    model = compiled(every(2)(network()))
    x, y = batch()
    before = model.get_weights()
    kr.liveness.profile(model, x, y)
    for kept, old in zip(model.get_weights(), before):
        np.testing.assert_array_equal(kept, old)
    model.fit(x, y, verbose=0)


def test_a_function_of_a_tree_of_arrays():
    def loss(weights, x):
        return jnp.sum(jnp.tanh(x @ weights["kernel"]) ** 2)

    weights = {"kernel": jax.ShapeDtypeStruct((64, 64), jnp.float32)}
    program = kr.liveness.profile(
        jax.grad(loss), weights, jnp.ones((256, 64)), input_feed=["x"], capacity_bytes=2**20
    )
    assert program.input_feed_bytes == 4 * 256 * 64
    assert program.capacity_bytes == 2**20
    given = {b.name: b.size_bytes for b in program.buffers if b.category == "input"}
    assert given == {"weights['kernel']": 4 * 64 * 64, "x": 4 * 256 * 64}
    phases = {step.phase for step in program.steps}
    assert {"forward", "backward"} <= phases
    lines = {b.source for b in program.buffers if b.source}
    assert all(__file__ in line for line in lines)
    assert lines


def test_users_keep_their_lines_in_a_folder_named_like_a_library(tmp_path):
    path = tmp_path / "keras_recompute" / "jax" / "mine.py"
    path.parent.mkdir(parents=True)
    path.write_text("import jax.numpy as jnp\n\ndef loss(x):\n    return jnp.sum(jnp.sin(x))\n")
    mine = runpy.run_path(str(path))
    program = kr.liveness.profile(jax.grad(mine["loss"]), jnp.ones((256, 64)))
    assert {b.source for b in program.buffers if b.source} == {f"{path}:4"}


def test_donated_arguments_are_weights_and_unused_ones_are_left_out():
    step = jax.jit(lambda w, _, x: w - x.T @ (x @ w), donate_argnums=0)
    program = kr.liveness.profile(step, jnp.ones((8, 8)), jnp.ones(100), jnp.ones((64, 8)))
    given = {b.name: b.category for b in program.buffers if b.lifetime == "always-live"}
    assert given["w"] == "weight"
    assert given["x"] == "input"


def test_a_replay_of_jax_checkpoint_is_told_by_its_name():
    from keras_recompute.liveness.jax_op_names import translated
    from keras_recompute.op_names import parse_op_name

    forward = "jit(step)/jvp(recomputation.forward.section-0)/dense/dot_general"
    transposed = "jit(step)/transpose(jvp(recomputation.forward.section-0))"
    checkpoint = f"{transposed}/jvp(recomputation.forward.section-0)/checkpoint"
    names = {
        forward: ("forward", "section-0"),
        f"{checkpoint}/rematted_computation/dense/erfc": ("recompute", "section-0"),
        f"{checkpoint}/dense/mul": ("backward", "section-0"),
        "jit(step)/transpose(jvp(net))/checkpoint/dense/mul": ("backward", "checkpoint"),
        "jit(step)/jvp(net)/checkpoint/dense/mul": ("forward", None),
        "jit(step)/transpose(jvp())/add_any": ("backward", None),
    }
    for name, wanted in names.items():
        assert parse_op_name(translated(name)) == wanted, name


def test_programs_in_the_cache_of_jax_are_compiled_anew(tmp_path):
    options = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in options}

    def function(x):
        return jnp.sum(jnp.sin(x @ x))

    try:
        for name, value in options.items():
            jax.config.update(name, value)
        jax.jit(function)(jnp.ones((64, 64)))
        program = kr.liveness.profile(function, jnp.ones((64, 64)))
        assert any(b.size_bytes == 4 * 64 * 64 for b in program.buffers)
        assert jax.config.jax_enable_compilation_cache
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_a_run_is_measured():
    model = compiled(every(2)(network()))
    big = np.zeros((2**15, WIDTH)), np.zeros((2**15, 8))
    before = model.get_weights()
    program = kr.liveness.profile(model, *big, device="local")
    assert "the process" in program.measured_by
    assert 0.8 < program.measured_bytes / program.allocated_temporary_bytes < 1.3
    for kept, old in zip(model.get_weights(), before):
        np.testing.assert_array_equal(kept, old)


def test_what_cannot_be_profiled():
    with pytest.raises(InvalidArgumentError, match="is not compiled with an optimizer"):
        kr.liveness.profile(network(), *batch())
    with pytest.raises(InvalidArgumentError, match="input_feed names 'z'"):
        kr.liveness.profile(lambda x: x * 2, jnp.ones(4), input_feed=["z"])
    with pytest.raises(InvalidArgumentError, match="has the shape"):
        kr.liveness.profile(lambda x: x, keras.KerasTensor((None, 4)))
    with pytest.raises(InvalidArgumentError, match="there is no device 'h10'"):
        kr.liveness.profile(lambda x: x, jnp.ones(4), device="h10")
    with pytest.raises(UnsupportedError, match=r"liveness\.capture_fit is not available"):
        kr.liveness.capture_fit()
