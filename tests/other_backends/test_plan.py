"""Plans on JAX and PyTorch: proved by the compiled or recorded step that ``fit`` runs."""

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, RecomputeWarning, UnsupportedError
from keras_recompute.models.measures.backend_measures import LayerProfiler
from keras_recompute.models.plans.checkpointed import graph_of
from keras_recompute.planning import BudgetTooSmallError

L = keras.layers
BACKEND = keras.config.backend()
FOUND_BY = {"jax": "compiled", "torch": "recorded on fake tensors"}


def dense(count=8, width=128):
    x = inputs = keras.Input((width,))
    for _ in range(count):
        x = L.Dense(width, "relu")(x)
    return keras.Model(inputs, L.Dense(4)(x)), (np.zeros((1024, width)), np.zeros((1024, 4)))


def transformer():
    x = inputs = keras.Input((32, 32))
    for _ in range(3):
        y = L.LayerNormalization()(x)
        x = L.Add()([x, L.MultiHeadAttention(2, 16, dropout=0.1)(y, y)])
        y = L.Dense(128, "gelu")(L.LayerNormalization()(x))
        x = L.Add()([x, L.Dense(32)(y)])
    return keras.Model(inputs, L.Dense(4)(x)), (np.zeros((16, 32, 32)), np.zeros((16, 32, 4)))


def normalized_convolutions():
    x = inputs = keras.Input((16, 16, 3))
    for _ in range(6):
        x = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", activation="tanh")(x))
    outputs = L.Dense(4)(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs), (np.zeros((16, 16, 16, 3)), np.zeros((16, 4)))


def recurrent():
    x = inputs = keras.Input((8, 16))
    for _ in range(4):
        x = L.LSTM(16, return_sequences=True)(x)
    return keras.Model(inputs, L.Dense(4)(x)), (np.zeros((16, 8, 16)), np.zeros((16, 8, 4)))


def tokens():
    inputs = keras.Input((32,), dtype="int32")
    x = L.Embedding(50, 32)(inputs)
    for _ in range(4):
        x = L.Add()([x, L.Dropout(0.1)(L.Dense(32, "tanh")(x))])
    batch = np.zeros((32, 32), "int32"), np.zeros((32, 32, 4))
    return keras.Model(inputs, L.Dense(4)(x)), batch


MODELS = dense, transformer, normalized_convolutions, recurrent, tokens


def peak(model, batch, optimizer="adam"):
    if not model.compiled:
        model.compile(optimizer, "mse")
    return kr.liveness.profile(model, *batch).peak_bytes


@pytest.mark.parametrize("build", MODELS)
def test_a_plan_for_half_holds_in_the_step_of_fit_or_its_floor_does(build):
    model, batch = build()
    plain = peak(model, batch)
    budget = plain // 2
    try:
        planned, plan = kr.plan(model, memory_budget=budget, sample=batch)
    except BudgetTooSmallError as refusal:
        budget = refusal.smallest_budget_bytes
        planned, plan = kr.plan(model, memory_budget=budget, sample=batch)
    assert budget < plain
    assert plan.plain_peak_bytes == plain
    assert plan.method == f"{FOUND_BY[BACKEND]}: a step with its Adam, and its loss"
    found = peak(planned, batch)
    assert found <= plan.budget_bytes
    # The optimizer that is compiled in the test is another object of the same kind.
    assert found == pytest.approx(plan.compiled_peak_bytes, rel=0.01)


@pytest.mark.parametrize("build", [dense, transformer, normalized_convolutions, recurrent])
def test_predictions_of_plain_steps_are_near(build):  # the LSTM's on PyTorch to 30 %
    model, batch = build()
    plain = peak(model, batch)
    _, plan = kr.plan(model, memory_budget=2**40, sample=batch, prove=False)
    assert plan.plain_peak_bytes == pytest.approx(plain, rel=0.3)


def test_a_plain_model_that_fits_is_returned_without_checkpoints():
    model, batch = dense()
    planned, plan = kr.plan(model, memory_budget="1GiB", sample=batch)
    assert plan.checkpoints == planned.plan.checkpoints == ()
    assert "the plain model fits" in str(plan)


def test_without_a_loss_the_squares_of_the_outputs_are_trained():
    model, batch = dense()
    _, plain = kr.plan(model, memory_budget="1GiB", batch_size=1024)
    budget = int(0.8 * plain.plain_peak_bytes)
    planned, plan = kr.plan(model, memory_budget=budget, batch_size=1024)
    assert plan.checkpoints
    assert "with SGD, as it is not compiled, and the squares of its outputs" in plan.method
    assert peak(planned, batch, "sgd") <= plan.budget_bytes


def test_a_planned_model_trains_as_the_plain_one():
    keras.utils.set_random_seed(1)
    model, _ = normalized_convolutions()
    x, y = np.random.rand(8, 16, 16, 3), np.random.rand(8, 4)
    weights = model.get_weights()
    _, plain = kr.plan(model, memory_budget="1GiB", batch_size=8)
    budget = int(0.8 * plain.plain_peak_bytes)
    planned, plan = kr.plan(model, memory_budget=budget, batch_size=8)
    assert plan.checkpoints
    results = []
    for each in (model, planned):
        each.set_weights(weights)
        each.compile("sgd", "mse")
        results.append([float(each.train_on_batch(x, y)) for _ in range(3)])
    np.testing.assert_allclose(*results, rtol=1e-5)


class Blocks(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [keras.Sequential([L.Dense(256, "gelu"), L.Dense(64)]) for _ in range(6)]
        self.head = L.Dense(4)

    def call(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def test_a_model_of_its_own_is_planned_by_its_layers():
    model = Blocks()
    model.compile("adam", "mse")
    batch = np.zeros((1024, 64)), np.zeros((1024, 4))
    plain = peak(model, batch)
    planned, plan = kr.plan(model, memory_budget=int(0.9 * plain), sample=batch)
    assert plan.layers
    assert plan.method == f"{FOUND_BY[BACKEND]}: its own training step"
    assert peak(planned, batch) <= 0.9 * plain


def test_a_batch_size_replaces_that_of_the_sample():
    model = Blocks()
    model.compile("adam", "mse")
    batch = np.zeros((64, 64)), np.zeros((64, 4))
    peak(model, batch)
    asked = {"memory_budget": "1GiB"}
    expected = kr.plan(model, sample=batch, **asked)[1].plain_peak_bytes
    few = batch[0][:2], batch[1][:2]
    assert kr.plan(model, sample=few, batch_size=64, **asked)[1].plain_peak_bytes == expected
    assert kr.plan(model, sample=few, **asked)[1].plain_peak_bytes < expected


class OwnOptimizers(keras.Model):
    """Trains by two optimizers, as a GAN does."""

    def __init__(self):
        super().__init__()
        self.layer = L.Dense(2)

    def compile(self):
        super().compile()
        self.optimizer = None
        self.optimizers = [keras.optimizers.Adam(), keras.optimizers.Adam()]

    def call(self, x):
        return self.layer(x)

    def train_step(self, *_):
        raise AssertionError("it is refused before")


def test_a_model_with_optimizers_of_its_own_is_refused():
    model = OwnOptimizers()
    model.compile()
    with pytest.raises(UnsupportedError, match="trains by optimizers of its own"):
        kr.liveness.profile(model, np.zeros((4, 2)))


def test_nothing_is_trained_and_no_seed_is_drawn():
    model, batch = transformer()
    before = [keras.ops.convert_to_numpy(v) for v in model.variables]
    kr.plan(model, memory_budget="1GiB", sample=batch)
    for variable, old in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), old)


def test_the_cost_of_a_dense_layer():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, L.Dense(16, "tanh")(inputs))
    graph = graph_of(model)
    (call,) = graph.calls
    shapes = {
        graph.inputs[0]: keras.KerasTensor((4, 8)),
        call.outputs[0]: keras.KerasTensor((4, 16)),
    }
    cost = LayerProfiler(shapes, timed=False)(call)
    # A product of (4, 8) by (8, 16), then 64 sums and 64 hyperbolic tangents. On PyTorch products
    # and results count.
    elements = {"jax": 64 + 64, "torch": 64}
    assert cost.cost == 2 * 4 * 8 * 16 + elements[BACKEND]
    assert cost.multiplies == {0}  # the gradient of the kernel
    assert cost.needs == {0}  # 1 - tanh(x)**2
    assert cost.kept == {}


def test_checkpoints_that_save_nothing_are_said_to():
    model, _ = dense(12, 256)
    # Otherwise each gradient is freed before the next one is computed.
    model.compile(keras.optimizers.SGD(global_clipnorm=1.0), "mse")
    with pytest.warns(RecomputeWarning, match="save no memory: a training step takes"):
        kr.checkpointed(model, every=4, sample=np.zeros((4, 256)))


def test_what_cannot_be_planned():
    model, batch = dense()
    with pytest.raises(InvalidArgumentError, match="batch_size is None"):
        kr.plan(model, memory_budget="1MiB")
    with pytest.raises(InvalidArgumentError, match="sample= has shape"):
        kr.plan(model, memory_budget="1MiB", sample=np.zeros((4, 5)))
    with pytest.raises(InvalidArgumentError, match="sample= has 2 arrays"):
        kr.plan(model, memory_budget="1MiB", sample=[np.zeros((4, 5))] * 2)
    with pytest.raises(BudgetTooSmallError, match="the smallest that suffices is"):
        kr.plan(model, memory_budget=1, sample=batch)
    with pytest.raises(UnsupportedError, match=r"plan\(timed=\) is not available"):
        kr.plan(model, memory_budget="1MiB", sample=batch, timed=True)
    open_model = keras.Sequential([keras.Input((None, 4)), L.Dense(4), L.Dense(4)])
    with pytest.raises(InvalidArgumentError, match="depends on the unknown sizes"):
        kr.plan(open_model, memory_budget="1MiB", batch_size=2)


def test_a_batch_size_that_keras_input_has_not_is_refused():
    model = keras.Sequential([keras.Input((4,), batch_size=4), L.Dense(4, "tanh"), L.Dense(4)])
    with pytest.raises(InvalidArgumentError, match=r"is 1024, and the input .* has 4 fixed"):
        kr.plan(model, memory_budget="1MiB", batch_size=1024)
    _, same = kr.plan(model, memory_budget="1MiB", batch_size=4)
    _, fixed = kr.plan(model, memory_budget="1MiB")
    assert same.compiled_peak_bytes == fixed.compiled_peak_bytes


def test_a_second_plan_compiles_nothing_again(monkeypatch):
    model, batch = dense(4, 16)
    model.compile("adam", "mse")
    _, plan = kr.plan(model, memory_budget="smallest", sample=batch)

    def refused(*_, **__):
        raise AssertionError("compiled again")

    monkeypatch.setattr("keras_recompute.models.measures.step_peak.StepPeaks._compiled", refused)
    _, again = kr.plan(model, memory_budget="smallest", sample=batch)
    assert again.compiled_peak_bytes == plan.compiled_peak_bytes


@pytest.mark.skipif(BACKEND != "torch", reason="other backends need the device's compiler")
def test_a_record_is_compared_with_the_memory_of_a_device():
    model, batch = dense()
    model.compile("adam", "mse")
    record = kr.liveness.profile(model, *batch)
    _, plan = kr.plan(model, memory_budget="device", device="t4", sample=batch)
    batch_bytes = 4 * 1024 * (128 + 4)  # float32, 1,024 rows of inputs and targets
    assert plan.compiled_peak_bytes == record.peak_bytes + batch_bytes
    assert plan.budget_bytes == 15843721216
    with pytest.raises(UnsupportedError, match="device='local' is the device"):
        kr.plan(model, memory_budget="device", device="local", sample=batch)
