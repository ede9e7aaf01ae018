"""The oracle of these tests: the plain Keras model, trained beside ours on the same data."""

import keras
import numpy as np

import keras_recompute as kr

STEPS = 5


def trained(build, x, y, *, loss="mse", optimizer="adam", place=None, **compile_options):
    """Return losses, weights and predictions after ``STEPS`` updates of the model of ``build``.

    ``place`` puts checkpoints into it.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = build()
    if place is not None:
        model = place(model)
    model.compile(optimizer, loss, **compile_options)
    losses = [keras.ops.convert_to_numpy(model.train_on_batch(x, y)) for _ in range(STEPS)]
    predicted = keras.tree.map_structure(np.asarray, model.predict(x, verbose=0))
    return losses, model.get_weights(), keras.tree.flatten(predicted)


def assert_trains_as_plain(build, x, y, place, *, tolerance=1e-6, **options):
    """Assert that checkpoints change no loss, weight or prediction."""
    wanted = trained(build, x, y, **options)
    found = trained(build, x, y, place=place, **options)
    for part, (ours, plain) in zip(("loss", "weight", "prediction"), zip(found, wanted)):
        for number, (a, b) in enumerate(zip(ours, plain, strict=True)):
            np.testing.assert_allclose(
                np.asarray(a, "float64"),
                np.asarray(b, "float64"),
                rtol=tolerance * 10,
                atol=tolerance,
                err_msg=f"{part} {number}",
            )


def every(layers):
    """Return a function that puts a checkpoint behind every so many layers."""
    return lambda model: kr.checkpointed(model, every=layers)
