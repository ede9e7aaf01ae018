"""The memory record of a training step on PyTorch, beside PyTorch's own tracker of fake tensors."""

import gc
import warnings

import keras
import numpy as np
import pytest
import torch
from plain_oracle import every
from torch_storages import Operations

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, UnsupportedError
from keras_recompute.liveness.torch_batches import fake_of_meta, meta_of
from keras_recompute.liveness.torch_fake_runs import fake_of
from keras_recompute.liveness.torch_storages import StorageRecording
from keras_recompute.seams.keras.layers import backend_variable, values_replaced
from keras_recompute.seams.torch.fake_tensors import fake_mode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.distributed._tools.mem_tracker import MemTracker

L = keras.layers


def model_of(*layers, shape=(16,), **options):
    model = keras.Sequential([keras.Input(shape, **options), *layers])
    model.compile("adam", "mse", jit_compile=False)
    return model


def residual():
    x = inputs = keras.Input((64,))
    for _ in range(4):
        x = L.Add()([x, L.Dropout(0.2)(L.Dense(64, "gelu")(L.LayerNormalization()(x)))])
    return keras.Model(inputs, L.Dense(1)(x))


def attention():
    x = inputs = keras.Input((12, 16))
    for _ in range(2):
        x = L.Add()([x, L.MultiHeadAttention(2, 8)(x, x)])
        x = L.LayerNormalization()(L.Add()([x, L.Dense(16, "relu")(x)]))
    return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(x)))


def normalized(widths=(128,) * 6):
    return [layer for n in widths for layer in (L.Dense(n, "gelu"), L.BatchNormalization())]


def convolutions():
    kinds = (L.Conv2D(8, 3, padding="same"), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D())
    return [*kinds, L.DepthwiseConv2D(3), L.Conv2D(4, 1), L.Flatten(), L.Dense(1)]


def compiled(model, optimizer="adam", **options):
    model.compile(optimizer, "mse", jit_compile=False, **options)
    return model


MODELS = {
    "one layer": lambda: model_of(L.Dense(1)),
    "dense": lambda: model_of(*(L.Dense(64, "tanh") for _ in range(4)), L.Dense(1)),
    "batch norm": lambda: model_of(*normalized(), L.Dense(1)),
    "dropout": lambda: model_of(L.Dense(128), L.Dropout(0.5), L.Dense(1)),
    "convolutions": lambda: model_of(*convolutions(), shape=(12, 12, 3)),
    "lstm": lambda: model_of(L.LSTM(16), L.Dense(1), shape=(10, 8)),
    "gru": lambda: model_of(L.GRU(16), L.Dense(1), shape=(10, 8)),
    "embedding": lambda: model_of(
        L.Embedding(50, 16), L.Flatten(), L.Dense(1), shape=(8,), dtype="int32"
    ),
    "attention": lambda: compiled(attention()),
    "residual": lambda: compiled(residual()),
    "residual, sgd": lambda: compiled(residual(), keras.optimizers.SGD(0.1, momentum=0.9)),
    "metrics": lambda: compiled(residual(), metrics=["mae"]),
    "checkpoints": lambda: compiled(every(4)(residual())),
    "bfloat16": lambda: model_of(*(L.Dense(64, "relu", dtype="mixed_bfloat16") for _ in range(3))),
}


def batch_for(model, size=32):
    shape, dtype = model.inputs[0].shape[1:], model.inputs[0].dtype
    return np.ones((size, *shape), dtype), np.ones((size, *model.outputs[0].shape[1:]), "float32")


class NoModules:
    """In place of the tracker's look at modules, which wants gradients of all of Keras's."""

    is_bw, parents = False, frozenset()

    def register_user_hooks(self, *_):
        pass

    clear_user_hooks = __enter__ = __exit__ = register_user_hooks


def tracked_peak(model, batch):
    """Return the peak of the training step by PyTorch's own tracker; batch and weights count."""
    kept = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    variables = list({id(variable): variable for variable in kept}.values())
    mode, tracker = fake_mode(), MemTracker()
    tracker._mod_tracker = NoModules()
    with mode:
        values = [mode.from_tensor(backend_variable(variable)) for variable in variables]
        data = tuple(mode.from_tensor(torch.as_tensor(part)) for part in batch)
        tracker.track_external(*values, *data)
        # The recording answers where a program asks for numbers.
        with values_replaced(variables, values), tracker, StorageRecording(str):
            model.train_step(data)
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_that_of_pytorchs_tracker(name):
    model = MODELS[name]()
    batch = batch_for(model)
    weights = model.get_weights()
    model.optimizer.build(model.trainable_variables)
    state = [np.array(v) for v in model.optimizer.variables]
    program = kr.liveness.profile(model, *batch)
    peak = program.peak_bytes + program.input_feed_bytes
    assert peak == tracked_peak(model, batch)
    # Nothing was trained, and the model trains.
    now = [*model.get_weights(), *map(np.array, model.optimizer.variables)]
    for kept, before in zip(now, [*weights, *state], strict=True):
        np.testing.assert_array_equal(kept, before)
    assert np.isfinite(model.train_on_batch(*batch)).all()


def deep():
    x = inputs = keras.Input((32,))
    for _ in range(16):
        x = L.Dropout(0.1)(L.Dense(128, "gelu")(x))
    return keras.Model(inputs, L.Dense(1)(x))


def test_checkpoints_lower_the_peak():
    peaks = {}
    for name, model in {"plain": deep(), "every": every(8)(deep())}.items():
        program = kr.liveness.profile(compiled(model), *batch_for(model, 512))
        peaks[name] = program.not_always_live_peak_bytes
        assert program.named_share_at_peak() > 0.9
    assert peaks["every"] < 0.35 * peaks["plain"]


@pytest.mark.parametrize("place", [lambda model: model, every(8)], ids=["plain", "every 8"])
def test_the_record_is_what_a_run_takes(place):
    """Also without the garbage collector: nothing that a replay made outlives its section."""
    model = compiled(place(deep()))
    batch = batch_for(model, 512)
    model.train_on_batch(*batch)
    program = kr.liveness.profile(model, *batch)
    gc.collect()
    gc.disable()
    try:
        with Operations() as run:
            model.train_on_batch(*batch)
    finally:
        gc.enable()
    assert run.peak_bytes == program.not_always_live_peak_bytes


def test_names_phases_and_sections():
    model = compiled(every(8)(deep()))
    program = kr.liveness.profile(model, *batch_for(model))
    assert {step.phase for step in program.steps} == {"forward", "recompute", "backward", "update"}
    sections = {f"section-{number}" for number in range(3)}
    for phase in ("forward", "recompute", "backward"):
        found = {step.section for step in program.steps if step.phase == phase}
        assert found - {None} == sections
    # Of each layer, in the phase and section of its own.
    replayed = [step for step in program.steps if step.phase == "recompute"]
    layers = [layer.name for layer in model.layers if isinstance(layer, L.Dense)]
    assert {step.layer for step in replayed} & set(layers) == set(layers[:12])
    by_category = {buffer.category for buffer in program.buffers}
    assert by_category >= {"weight", "optimiser", "input", "activation", "gradient"}
    assert kr.liveness.Program.from_json(program.to_json()) == program


def test_known_bytes_of_a_function():
    """Three storages of 4 KiB: sin(x), its product with x, and the sum's gradient."""
    x = torch.empty(1024, device="meta", requires_grad=True)

    def loss_and_gradient(x):
        return torch.autograd.grad((torch.sin(x) * x).sum(), x)

    program = kr.liveness.profile(loss_and_gradient, x)
    assert (program.name, program.always_live_bytes) == ("loss_and_gradient", 4096)
    # sin(x) is alive until its factor's gradient; the expanded gradient has one element.
    sizes = [buffer.size_bytes for buffer in program.buffers if buffer.lifetime == "temporary"]
    assert sizes.count(4096) >= 4
    assert [b.size_bytes for b in program.buffers if b.lifetime == "result"] == [4096]
    fed = kr.liveness.profile(loss_and_gradient, x, input_feed=["argument_0"])
    assert (fed.always_live_bytes, fed.input_feed_bytes) == (0, 4096)


def test_a_step_of_pytorchs_own_modules_and_optimizer():
    network = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.5)

    def step(x):
        loss = network(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    before = {name: value.clone() for name, value in network.state_dict().items()}
    for _ in range(2):
        program = kr.liveness.profile(step, torch.empty(32, 8, device="meta"))
        weights = {b.name for b in program.buffers if b.category == "weight"}
        assert weights >= {"0/weight", "1/running_mean", "2/bias"}
        assert {step.phase for step in program.steps} == {"forward", "backward", "update"}
        assert {"0", "1", "2"} <= {step.layer for step in program.steps}
        for name, value in network.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert all(parameter.grad is None for parameter in network.parameters())
        assert not optimizer.state
    step(torch.ones(32, 8))
    moments = kr.liveness.profile(step, torch.empty(32, 8, device="meta"))
    assert sum(b.category == "optimiser" and b.lifetime == "always-live" for b in moments.buffers)


def test_scopes_are_in_the_record():
    weight = torch.nn.Parameter(torch.ones(64, 64))

    def step(x, scope):
        for _ in range(6):
            with scope():
                x = torch.tanh(torch.sin(x @ weight))
        x.sum().backward()

    plain, ours = (
        kr.liveness.profile(lambda x, s=scope: step(x, s), torch.empty(512, 64, device="meta"))
        for scope in (torch.enable_grad, kr.recompute_scope)
    )
    assert ours.not_always_live_peak_bytes < 0.8 * plain.not_always_live_peak_bytes
    assert {step.phase for step in ours.steps} == {"forward", "recompute", "backward"}


def test_a_device_gives_its_memory():
    model = model_of(L.Dense(1))
    program = kr.liveness.profile(model, *batch_for(model), device="h100")
    assert program.capacity_bytes > 70 * 2**30
    with pytest.raises(InvalidArgumentError, match="there is no device"):
        kr.liveness.profile(model, *batch_for(model), device="z80")
    with pytest.raises(UnsupportedError, match="compile_program is not available"):
        kr.liveness.compile_program(model, *batch_for(model))


def test_a_branch_on_a_value_is_refused():
    with pytest.raises(UnsupportedError, match="branches on the value of a tensor"):
        kr.liveness.profile(lambda x: x if x.sum() > 0 else -x, torch.empty(4, device="meta"))


@pytest.mark.parametrize("options", [{"gradient_accumulation_steps": 4}, {"use_ema": True}])
def test_the_update_of_several_microbatches_is_recorded(options):
    model = model_of(L.Dense(64))
    x, y = batch_for(model)
    programs = []
    for given in ({}, options):
        model.compile(keras.optimizers.Adam(**given), "mse")
        programs.append(kr.liveness.profile(model, x, y))
    plain, accumulated = programs
    # A sum, or a mean, for each of the weights.
    more = 4 * model.count_params()
    assert accumulated.always_live_bytes == plain.always_live_bytes + more
    assert len(accumulated.steps) > len(plain.steps)
    assert accumulated.steps[-1].phase == "update"
    assert int(model.optimizer.iterations) == 0


def test_a_model_that_is_not_compiled():
    with pytest.raises(InvalidArgumentError, match="is not compiled"):
        kr.liveness.profile(deep(), np.ones((4, 32)), np.ones((4, 1)))


def test_a_batch_stands_where_keras_puts_it():
    spec = meta_of(torch.zeros(2, 3))
    with keras.device("meta"):
        assert fake_of_meta(spec).device.type == "meta"
        assert fake_of_meta(spec, torch.zeros(2, 3)).device.type == "cpu"
        assert fake_of(keras.KerasTensor((2, 3))).device.type == "meta"
    assert fake_of_meta(spec).device.type == "cpu"
