"""Updates in the backward pass on PyTorch: the plain model's to the bit, in less memory."""

import keras
import numpy as np
import pytest
import torch

import keras_recompute as kr
from keras_recompute.errors import InvalidArgumentError, RecomputeWarning
from keras_recompute.keras_backend import torch_updates

L = keras.layers
STEPS = 5


def chain(width=64, layers=8, use_bias=True):
    x = inputs = keras.Input((width,))
    for _ in range(layers):
        x = L.Dense(width, activation="tanh", use_bias=use_bias)(x)
    return keras.Model(inputs, x)


class Tied(L.Layer):
    """Scores by the table of an embedding, whose gradient then comes from two sections."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.table.embeddings))


def branched():
    """Shared, frozen, regularised and normalised layers, a tied table, and a head without loss."""
    ids = keras.Input((6,), dtype="int32")
    table, shared = L.Embedding(7, 8), L.Dense(8, activation="tanh")
    frozen = L.Dense(8, activation="tanh", trainable=False)
    x = table(ids)
    for _ in range(2):
        x = shared(L.Dense(8, activation="gelu", kernel_regularizer="l2")(x))
        x = L.Dropout(0.1)(L.BatchNormalization()(L.Dense(8, kernel_constraint="unit_norm")(x)))
    x = L.Dense(8, activation="gelu")(shared(frozen(x)))
    return keras.Model(ids, {"scores": Tied(table)(x), "unused": L.Dense(2)(x)})


def trained(build, data, make_optimizer, *, every=None, loss="mse"):
    """Return losses, and all variables of model and optimizer, after ``STEPS`` updates."""
    keras.utils.set_random_seed(0)
    model = build()
    if every:
        model = kr.checkpointed(model, every=every)
    model.compile(make_optimizer(), loss, jit_compile=False)
    losses = [np.asarray(model.train_on_batch(*data)) for _ in range(STEPS)]
    variables = [*model.variables, *model.optimizer.variables]
    return [*losses, *map(keras.ops.convert_to_numpy, variables)]


def assert_equal(found, wanted):
    for number, (ours, plain) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(ours, plain, err_msg=str(number))


def with_undecayed(variables=("bias",)):
    optimizer = keras.optimizers.AdamW(0.01)
    optimizer.exclude_from_weight_decay(var_names=list(variables))
    return optimizer


class OwnSGD(keras.optimizers.SGD):
    """Half of the rate for the second and later calls of a step: it counts on one call."""

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        super()._backend_update_step(grads, trainable_variables, learning_rate / len(grads))


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(1, 1, 0.5)
    ),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(0.01),
    "undecayed": with_undecayed,
    "average": lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=2),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adadelta": lambda: keras.optimizers.Adadelta(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, centered=True),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "lion": lambda: keras.optimizers.Lion(0.001),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "own": lambda: OwnSGD(0.1),
    "clip by value": lambda: keras.optimizers.Adam(0.01, clipvalue=0.01),
    "clip each norm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
    "clip all norms": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "scale": lambda: keras.optimizers.Adam(0.01, loss_scale_factor=8.0),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
}
AT_THE_END = {
    "undecayed",
    "average",
    "nadam",
    "own",
    "clip all norms",
    "accumulation",
    "scale",
    "loss scale",
}


@pytest.fixture
def one_by_one(monkeypatch):
    """Have each weight updated as soon as it may be, however small it is."""
    monkeypatch.setattr(torch_updates, "GROUP_BYTES", 1)


@pytest.fixture
def early(monkeypatch, one_by_one):  # noqa: ARG001
    """A list with an entry for each update in a backward pass."""
    made, plain_update = [], torch_updates.update_now

    def update(optimizer, gradients, variables):
        made.extend(variables)
        plain_update(optimizer, gradients, variables)

    monkeypatch.setattr(torch_updates, "update_now", update)
    return made


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_five_updates_are_the_plain_models_to_the_bit(name, early):
    data = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")

    def build():
        return chain(width=8, layers=4)

    wanted = trained(build, data, OPTIMIZERS[name])
    assert not early
    assert_equal(trained(build, data, OPTIMIZERS[name], every=2), wanted)
    assert len(early) == (0 if name in AT_THE_END else STEPS * 4 * 2)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # of the head without a loss
@pytest.mark.parametrize("name", ["adamw", "clip all norms"])
def test_layers_of_all_kinds(name, early):
    random = np.random.default_rng(0)
    ids, targets = random.integers(0, 7, (2, 4, 6)).astype("int32")
    data = ids, {"scores": targets, "unused": np.zeros((4, 6, 2), "float32")}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = {"scores": loss, "unused": None}
    wanted = trained(branched, data, OPTIMIZERS[name], loss=losses)
    assert_equal(trained(branched, data, OPTIMIZERS[name], every=2, loss=losses), wanted)
    # Of 19 weights the two of the unused head have no gradient.
    assert len(early) == (0 if name in AT_THE_END else STEPS * 17)


class Scaled(L.Layer):
    """Multiplies by the mean of weights that a later layer trains."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def call(self, x):
        return keras.ops.tanh(x * keras.ops.stop_gradient(keras.ops.mean(self.other.kernel)))


def scaled_by_later_weights():
    inputs, later = keras.Input((8,)), L.Dense(8)
    later.build((None, 8))
    x = L.Dense(8, activation="tanh")(Scaled(later)(L.Dense(8)(inputs)))
    return keras.Model(inputs, L.Dense(1)(L.Dense(8, activation="tanh")(later(x))))


class Gate(L.Layer):
    """Adds a bias whose gradient is complete before the mask that follows from it is replayed."""

    def build(self, _):
        self.bias = self.add_weight(shape=(8,), initializer="zeros")

    def call(self, x):
        masked = keras.ops.cast(x + self.bias > 0, "float32") * x
        return masked + (x + self.bias)


def gated():
    x = inputs = keras.Input((8,))
    for _ in range(4):
        x = Gate()(L.Dense(8)(x))
    return keras.Model(inputs, L.Dense(1)(x))


class ReadTwice(L.Layer):
    """Multiplies by weights behind ``stop_gradient``, which autograd saves, and then by them."""

    def build(self, _):
        self.kernel = self.add_weight(shape=(8, 8))

    def call(self, x):
        hidden = keras.ops.tanh(keras.ops.matmul(x, keras.ops.stop_gradient(self.kernel)))
        return keras.ops.matmul(hidden, self.kernel)


def saved_behind_stop_gradient():
    x = inputs = keras.Input((8,))
    for _ in range(3):
        x = L.Dense(8, activation="tanh")(x)
    return keras.Model(inputs, ReadTwice()(x))  # the last section is not recomputed


@pytest.mark.parametrize("build", [scaled_by_later_weights, gated, saved_behind_stop_gradient])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_no_weight_changes_while_it_is_still_read(build, name):
    random = np.random.default_rng(0)
    data = random.normal(size=(2, 16, 8)).astype("float32")
    optimizer = {"sgd": lambda: keras.optimizers.SGD(0.5), "adam": keras.optimizers.Adam}[name]
    data = data[0], data[1][:, : build().output_shape[-1]]
    assert_equal(trained(build, data, optimizer, every=2), trained(build, data, optimizer))


def loop(model, optimizer, x, y, *, around=None, losses=lambda loss: [loss]):
    """Train by a loop of one's own; return the weights."""
    for _ in range(STEPS):
        with around(optimizer) if around else torch.enable_grad():
            model.zero_grad()
            loss = ((model(x, training=True) - y) ** 2).mean()
            for each in losses(loss):
                each.backward(retain_graph=True)
            gradients = [v.value.grad for v in model.trainable_variables]
            with torch.no_grad():
                optimizer.apply(gradients, model.trainable_variables)
    return model.get_weights()


@pytest.mark.parametrize("every", [None, 2])
def test_a_loop_of_ones_own(every):
    x = torch.randn(16, 64)
    found = []
    for around in (None, kr.updates_in_backward):
        keras.utils.set_random_seed(0)
        model, optimizer = chain(), keras.optimizers.Adam(0.01)
        if every and around:
            model = kr.checkpointed(model, every=every)
        found.append(loop(model, optimizer, x, x, around=around))
    assert_equal(found[1], found[0])


def test_a_gradient_within_the_loss_replays_sections_before():
    """Its replay is not the one of the step's backward pass."""
    x = torch.randn(16, 8)

    def penalised(model, optimizer, around):
        for _ in range(STEPS):
            with around(optimizer):
                model.zero_grad()
                given = x.clone().requires_grad_()
                outputs = model(given, training=True)
                (slope,) = torch.autograd.grad(outputs.sum(), given, create_graph=True)
                (outputs.square().mean() + slope.square().mean()).backward()
                with torch.no_grad():
                    grads = [v.value.grad for v in model.trainable_variables]
                    optimizer.apply(grads, model.trainable_variables)
        return model.get_weights()

    found = []
    for place in (lambda model: model, lambda model: kr.checkpointed(model, every=2)):
        keras.utils.set_random_seed(0)
        model = place(scaled_by_later_weights())
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables)
        around = kr.updates_in_backward if found else (lambda _: torch.enable_grad())
        found.append(penalised(model, optimizer, around))
    assert_equal(found[1], found[0])


def train_last(model, optimizer, x, count):
    """Differentiate the mean of the outputs; apply ``optimizer`` to ``count`` weights."""
    with kr.updates_in_backward(optimizer):
        model(x).mean().backward()
        if count:
            optimizer.apply([torch.ones(64, 64)] * count, model.trainable_variables[:count])


@pytest.mark.usefixtures("one_by_one")
def test_what_would_be_another_result_is_refused():
    x = torch.randn(4, 64)
    model, optimizer = kr.checkpointed(chain(), every=2), keras.optimizers.SGD(name="SGD")
    optimizer.build(model.trainable_variables)
    given = {"around": kr.updates_in_backward}
    with pytest.raises(InvalidArgumentError, match="a second backward pass in one step adds"):
        loop(model, optimizer, x, x, **given, losses=lambda loss: [loss, 2 * loss])
    with pytest.raises(InvalidArgumentError, match="the step ended before 'SGD' was applied"):
        train_last(model, optimizer, x, 0)
    with pytest.raises(InvalidArgumentError, match="was applied to other weights or gradients"):
        train_last(model, optimizer, x, 1)
    with pytest.raises(InvalidArgumentError, match="needs the optimizer"):
        kr.updates_in_backward().__enter__()
    assert not {"apply", "_backend_apply_gradients"} & set(vars(optimizer))
    loop(model, optimizer, x, x, **given)  # as if nothing had been


class OwnStep(kr.Model):
    """Scales gradients by hand, which must be there for it."""

    def train_step(self, data):
        x, y, *_ = data
        self.zero_grad()
        loss = self.compute_loss(x, y, self(x, training=True))
        loss.backward()
        gradients = [0.5 * v.value.grad for v in self.trainable_weights]
        with torch.no_grad():
            self.optimizer.apply(gradients, self.trainable_weights)
        return {"loss": loss}


@pytest.mark.usefixtures("one_by_one")
def test_a_step_that_fails_in_its_backward_pass_says_what_it_updated():
    """As where memory ends. The last layer's two weights come first, then the second's bias."""
    model = kr.checkpointed(chain(layers=3), every=1)
    model.compile("sgd", "mse")
    x = np.ones((4, 64), "float32")
    model.train_on_batch(x, x)  # builds the optimizer

    def fail(_):
        raise MemoryError

    model.layers[2].kernel.value.register_hook(fail)
    said = pytest.warns(RecomputeWarning, match="3 of 6 weights were updated before this step")
    with said, pytest.raises(MemoryError):
        model.train_on_batch(x, x)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_small_weights_are_updated_together(name, monkeypatch):
    """Gradients of 8 x 8 and 8 numbers, 288 bytes a layer: groups of four layers and the rest."""
    groups, plain_update = [], torch_updates.update_now
    monkeypatch.setattr(torch_updates, "GROUP_BYTES", 4 * 288)

    def update(optimizer, gradients, variables):
        groups.append(len(variables))
        plain_update(optimizer, gradients, variables)

    monkeypatch.setattr(torch_updates, "update_now", update)
    data = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")
    found = trained(lambda: chain(8), data, OPTIMIZERS[name], every=2)
    assert groups == STEPS * [8, 8]
    assert_equal(found, trained(lambda: chain(8), data, OPTIMIZERS[name]))


def test_a_step_of_ones_own_has_its_gradients():
    x = inputs = keras.Input((8,))
    for _ in range(4):
        x = kr.RecomputationCheckpoint()(L.Dense(8, "tanh")(x))
    model = OwnStep(inputs, L.Dense(1)(x))
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(np.ones((4, 8), "float32"), np.ones((4, 1), "float32"))
    assert all(v.value.grad is not None for v in model.trainable_weights)


def test_added_losses_are_still_there_behind_the_backward_pass():
    def added(place):
        keras.utils.set_random_seed(0)
        x = inputs = keras.Input((8,))
        for _ in range(4):
            x = L.Dense(8, "tanh", activity_regularizer="l2")(x)
        model = place(keras.Model(inputs, x))
        model(torch.ones(2, 8), training=True).sum().backward()
        return [float(loss.detach()) for loss in model.losses]

    plain = added(lambda model: model)
    assert len(plain) == 4
    assert added(lambda model: kr.checkpointed(model, every=1)) == plain
