"""Where weights leave nothing for checkpoints to save, the first step says so; elsewhere nothing.

Six layers Dense(512): 6 * (512 * 512 + 512) weights are 6.0 MiB, with gradients and the two states
of Nadam 24.0 MiB. Each row of a batch has 6 * 512 * 4 bytes of activations, 12 KiB. On PyTorch an
update of Nadam waits for all gradients, and is one of all weights.
"""

import warnings

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from keras_recompute.liveness import profile
from keras_recompute.models.execution.spacing_advice import keeps_only_inputs_and_outputs

IS_JAX = keras.backend.backend() == "jax"


class OwnLayer(keras.layers.Layer):
    """A layer of the user's own, which may keep anything."""

    def call(self, x):
        return x * 2.0


def dense_layers(batch, *, width=512, optimizer="Nadam", own=False):
    """A compiled model of six layers, one with checkpoints, and a batch."""
    layers = [keras.layers.Dense(width, "relu") for _ in range(6)]
    if own:
        layers.append(OwnLayer())
    plain = keras.Sequential([keras.Input((width,)), *layers])
    ours = kr.checkpointed(plain, every=2)
    for model in (plain, ours):
        model.compile(optimizer, "mse", jit_compile=IS_JAX)
    x = np.ones((batch, width), "float32")
    return plain, ours, x


def said_by(train):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecomputeWarning)
        train()
    return [str(w.message) for w in caught if issubclass(w.category, RecomputeWarning)]


def said_in_fit(batch, **options):
    _, ours, x = dense_layers(batch, **options)
    return said_by(lambda: ours.fit(x, x, batch_size=batch, epochs=2, verbose=0))


def test_weights_that_leave_nothing_to_save_are_said_once():
    (message,) = said_in_fit(4)
    assert "save next to nothing: of a training step 24.0 MiB are weights, their" in message
    assert "48.0 KiB are activations" in message  # 4 rows of 12 KiB
    assert "checkpointed(..., sample=batch)" in message


def test_what_is_said_is_what_is_compiled():
    plain, ours, x = dense_layers(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecomputeWarning)
        assert profile(ours, x, x).peak_bytes > 0.98 * profile(plain, x, x).peak_bytes
    plain, ours, x = dense_layers(4096)
    assert profile(ours, x, x).peak_bytes < 0.95 * profile(plain, x, x).peak_bytes


@pytest.mark.parametrize("clip", [None, 1.0], ids=["each alone", "in groups"])
def test_on_pytorch_updates_need_less_memory_too(clip):
    """Gradients are freed by updates in the backward pass, or groups of weights updated in turn."""

    def models():
        plain, ours, x = dense_layers(4)
        for model in (plain, ours):
            model.compile(keras.optimizers.Adam(global_clipnorm=clip), "mse", jit_compile=IS_JAX)
        return plain, ours, x

    plain, ours, x = models()
    assert bool(said_by(lambda: ours.fit(x, x, batch_size=4, verbose=0))) is IS_JAX
    plain, ours, x = models()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecomputeWarning)
        needed, plain_needed = profile(ours, x, x).peak_bytes, profile(plain, x, x).peak_bytes
    assert (needed < 0.75 * plain_needed) is not IS_JAX


@pytest.mark.parametrize(
    "options",
    [{"batch": 4096}, {"batch": 4, "width": 64}, {"batch": 4, "own": True}],
    ids=["a larger batch", "a small step", "a layer of one's own"],
)
def test_nothing_is_said_of_small_steps_large_batches_and_own_layers(options):
    assert not said_in_fit(**options)


def test_a_plan_says_itself_what_it_saves():
    plain, _, x = dense_layers(4)
    planned, _ = kr.plan(plain, memory_budget="smallest", sample=(x, x), prove=False)
    planned.compile("adam", "mse", jit_compile=IS_JAX)
    assert not said_by(lambda: planned.fit(x, x, batch_size=4, verbose=0))


@pytest.mark.skipif(IS_JAX, reason="JAX does not reorder updates, so it warns there")
def test_a_loop_of_ones_own_may_free_gradients_by_itself():
    _, ours, x = dense_layers(4)
    assert not said_by(lambda: keras.ops.sum(ours(x, training=True)).backward())


def single_layers(activation, *, apart=False, **how):
    """Eight small layers on many rows, plain and with checkpoints, and a batch.

    ``apart`` puts each activation into a layer of its own.
    """
    layers = [keras.layers.Dense(64, None if apart else activation) for _ in range(8)]
    if apart:
        for place in range(8, 0, -1):
            layers.insert(place, keras.layers.Activation(activation))
    plain = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    ours = kr.checkpointed(plain, **how)
    for model in (plain, ours):
        model.compile("Nadam", "mse", jit_compile=IS_JAX)
    return plain, ours, np.ones((4096, 64), "float32"), np.ones((4096, 1), "float32")


@pytest.mark.parametrize("activation", [None, "tanh"])
def test_a_checkpoint_behind_each_layer_that_keeps_nothing_is_said_once(activation):
    plain, ours, x, y = single_layers(activation, every=1)
    (message,) = said_by(lambda: ours.fit(x, y, batch_size=4096, epochs=2, verbose=0))
    assert "save no memory" in message
    assert "Of its 9 layers, put a checkpoint after about every 3" in message
    assert profile(ours, x, y).peak_bytes > 0.98 * profile(plain, x, y).peak_bytes


@pytest.mark.parametrize(
    ("activation", "every"),
    [
        ("gelu", 1),
        ("tanh", 3),
        pytest.param("relu", 1, marks=pytest.mark.skipif(not IS_JAX, reason="JAX")),
    ],
)
def test_checkpoints_that_save_are_not_spoken_of(activation, every):
    plain, ours, x, y = single_layers(activation, every=every)
    assert not said_by(lambda: ours.fit(x, y, batch_size=4096, verbose=0))
    assert profile(ours, x, y).peak_bytes < 0.96 * profile(plain, x, y).peak_bytes


@pytest.mark.parametrize("activation", [None, "tanh"])
def test_recomputing_layers_that_keep_nothing_is_said_once(activation):
    plain, ours, x, y = single_layers(activation, layers=keras.layers.Dense)
    (message,) = said_by(lambda: ours.fit(x, y, batch_size=4096, epochs=2, verbose=0))
    assert "saves no memory: none of the 9 layers keeps more than its inputs and outputs" in message
    assert profile(ours, x, y).peak_bytes > 0.98 * profile(plain, x, y).peak_bytes


def test_recomputing_layers_of_which_one_saves_is_not_spoken_of():
    plain, ours, x, y = single_layers("gelu", layers=keras.layers.Dense)
    assert not said_by(lambda: ours.fit(x, y, batch_size=4096, verbose=0))
    assert profile(ours, x, y).peak_bytes < 0.96 * profile(plain, x, y).peak_bytes


@pytest.mark.parametrize("how", [{"every": 1}, {"layers": keras.layers.Activation}])
@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_activations_in_layers_of_their_own(activation, how):
    """On PyTorch a gelu keeps its input alone, which a Dense layer keeps inside."""
    plain, ours, x, y = single_layers(activation, apart=True, **how)
    said = said_by(lambda: ours.fit(x, y, batch_size=4096, epochs=2, verbose=0))
    saves = IS_JAX and activation == "gelu"
    assert len(said) == (not saves)
    assert all("no memory" in message for message in said)
    needed, plain_needed = profile(ours, x, y).peak_bytes, profile(plain, x, y).peak_bytes
    assert needed < 0.96 * plain_needed if saves else needed > 0.98 * plain_needed


def keeps_no_more(layer):
    """Whether autograd saves nothing else than what ``layer`` is given, returns and weighs."""
    import torch

    x = torch.randn((4, 6, 8), requires_grad=True)
    layer(x)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = layer(x)
    weights = [weight.value for weight in layer.weights]
    known = {each.untyped_storage().data_ptr() for each in (x, y, *weights)}
    return known.issuperset(each.untyped_storage().data_ptr() for each in kept)


NO_ACTIVATIONS = ("get", "serialize", "deserialize", "threshold")
NAMES = [n for n in dir(keras.activations) if n not in NO_ACTIVATIONS and n[0] != "_"]


@pytest.mark.skipif(IS_JAX, reason="PyTorch's autograd shows what it saves")
@pytest.mark.parametrize("name", NAMES)
def test_the_list_of_activations_is_what_autograd_saves(name):
    activation = getattr(keras.activations, name)
    L = keras.layers
    for layer in (L.Activation(activation), L.Dense(8, activation)):
        assert keeps_only_inputs_and_outputs(layer) is keeps_no_more(layer), layer


@pytest.mark.skipif(IS_JAX, reason="PyTorch's autograd shows what it saves")
@pytest.mark.parametrize(
    ("layer", "options"),
    [
        ("ReLU", {}),
        ("ReLU", {"max_value": 6.0}),
        ("ReLU", {"negative_slope": 0.1}),
        ("ReLU", {"threshold": 0.5}),
        ("LeakyReLU", {}),
        ("ELU", {}),
        ("ELU", {"alpha": 0.5}),
        ("Softmax", {}),
        ("PReLU", {}),
    ],
)
def test_the_list_of_activation_layers_is_what_autograd_saves(layer, options):
    made = getattr(keras.layers, layer)(**options)
    assert keeps_only_inputs_and_outputs(made) is keeps_no_more(made)


def frozen_in_front(front=8, *, head=1):
    """Layers whose weights do not train, in front of some that do."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, "gelu", trainable=False) for _ in range(front)]
    layers += [keras.layers.Dense(64, "gelu") for _ in range(head)]
    return keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])


BATCH = np.random.default_rng(0).normal(size=(2048, 64)).astype("float32"), np.ones((2048, 1))


def trained(model, steps=2):
    """The losses of some steps, and what is said in them."""
    model.compile("sgd", "mse", jit_compile=IS_JAX)
    losses = []
    said = said_by(lambda: losses.extend(model.train_on_batch(*BATCH) for _ in range(steps)))
    return losses, said


def test_frozen_layers_in_front_of_the_last_checkpoint_keep_nothing():
    """On PyTorch Keras holds their results until the call ends, and a section does not."""
    plain, ours = frozen_in_front(), kr.checkpointed(frozen_in_front(), every=4)
    expected, _ = trained(plain)
    losses, said = trained(ours)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    needed, plain_needed = profile(ours, *BATCH).peak_bytes, profile(plain, *BATCH).peak_bytes
    if IS_JAX:
        (message,) = said
        assert "no layer in front of the last of them has weights that train" in message
        assert needed == plain_needed
    else:
        assert not said
        assert needed < 0.7 * plain_needed


def test_checkpoints_behind_layers_that_train_save_and_are_not_spoken_of():
    plain, ours = (frozen_in_front(4, head=8) for _ in range(2))
    ours = kr.checkpointed(ours, every=3)
    expected, _ = trained(plain)
    losses, said = trained(ours)
    assert not said
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert profile(ours, *BATCH).peak_bytes < 0.7 * profile(plain, *BATCH).peak_bytes


def test_frozen_layers_that_are_recomputed_by_name_keep_nothing():
    plain, ours = (frozen_in_front() for _ in range(2))
    chosen = [layer for layer in ours.layers if not layer.trainable]
    ours = kr.checkpointed(ours, layers=chosen)
    expected, _ = trained(plain)
    losses, (message,) = trained(ours)
    assert "neither these 8 layers nor layers before them have weights that train" in message
    assert losses == expected
    assert profile(ours, *BATCH).peak_bytes == profile(plain, *BATCH).peak_bytes


@pytest.mark.parametrize("how", [{"every": 3}, {"layers": keras.layers.Dense}])
def test_a_frozen_network_that_is_differentiated_by_its_input_is_recomputed(how):
    """As for the transfer of styles, where an image trains."""

    def image(change):
        network = frozen_in_front(9, head=0)
        network.trainable = False
        return keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), change(network)])

    plain, ours = image(lambda network: network), image(lambda it: kr.checkpointed(it, **how))
    expected, _ = trained(plain)
    losses, said = trained(ours)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert not said
    assert profile(ours, *BATCH).peak_bytes < 0.8 * profile(plain, *BATCH).peak_bytes


@pytest.mark.skipif(not IS_JAX, reason="PyTorch records the gradients of all that trains")
@pytest.mark.parametrize("how", [{"every": 4}, {"layers": keras.layers.Dense}])
def test_a_model_that_another_is_trained_with_is_not_spoken_of(how):
    """As a generator in the step of its discriminator."""
    import jax

    generator = kr.checkpointed(frozen_in_front(0, head=8), **how)
    factor = jax.numpy.ones(())

    def loss(factor):
        weights = (generator.trainable_variables, generator.non_trainable_variables)
        values = [[variable.value for variable in group] for group in weights]
        made, _ = generator.stateless_call(*values, BATCH[0], training=True)
        return (factor * made).sum()

    assert not said_by(lambda: jax.jit(jax.grad(loss))(factor))


@pytest.mark.parametrize("how", [{"every": 1}, {"layers": "scaled*"}])
def test_a_layer_that_reads_a_value_of_its_own_is_recomputed(how):
    """Keras does not know the value, and a gradient is taken of it."""
    factors, kept = [0.5], []

    class Scaled(keras.layers.Layer):
        def call(self, x):
            for _ in range(4):
                x = keras.ops.gelu(x * factors[-1])
            return x

    keras.utils.set_random_seed(0)
    plain = keras.Sequential([keras.Input((64,)), Scaled(), keras.layers.Dense(1)])
    ours = kr.checkpointed(plain, **how)
    x = keras.ops.convert_to_tensor(BATCH[0])

    def gradient(model):
        if IS_JAX:
            import jax

            def loss(factor, weights):
                factors.append(factor)
                return keras.ops.mean(model.stateless_call(weights, [], x, training=True)[0])

            weights = [weight.value for weight in model.trainable_variables]
            return jax.grad(loss, (0, 1))(0.5, weights)[0]
        import torch

        factors.append(torch.nn.Parameter(torch.tensor(0.5)))
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss = keras.ops.mean(model(x, training=True))
        loss.backward()
        return factors[-1].grad

    def count(tensor):
        kept[-1] += 1
        return tensor

    expected, found = gradient(plain), []
    assert not said_by(lambda: found.append(gradient(ours)))
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    if not IS_JAX:
        of_plain, of_ours = kept
        assert of_ours < of_plain / 2
