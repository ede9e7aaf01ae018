"""A program for ``test_jax_distribution``: trains by the distribution that it is told, and prints
what it found as JSON.
"""

import json
import sys

import keras
import numpy as np

import keras_recompute as kr
from keras_recompute.fits.held_bytes import COLLECTIVES, held_bytes
from keras_recompute.liveness.device_compilers.catalogue import find_device
from keras_recompute.liveness.device_compilers.compiler import devices_of
from keras_recompute.liveness.jax_functions import trace_function

L = keras.layers
D = keras.distribution


def distribute(kind):
    devices = D.list_devices()
    if kind == "data":
        D.set_distribution(D.DataParallel(devices=devices))
    elif kind == "model":
        layouts = D.LayoutMap(D.DeviceMesh((2, 4), ("batch", "model"), devices))
        layouts["dense.*kernel"] = (None, "model")
        D.set_distribution(D.ModelParallel(layout_map=layouts, batch_dim_name="batch"))


def network():
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((64,))
    for number in range(6):
        x = L.Dropout(0.1)(L.Dense(64, "gelu", name=f"dense_{number}")(x))
    return keras.Model(inputs, L.Dense(8, name="head")(x))


def trained(model, x, y):
    model.compile("adam", "mse")
    program = kr.liveness.profile(model, x, y)
    history = model.fit(x, y, batch_size=len(x), epochs=3, verbose=0, shuffle=False)
    stated = program.compiler_totals
    results = stated["stated_output_bytes"] - stated["stated_alias_bytes"]
    return {
        "losses": history.history["loss"],
        "temporary": program.allocated_temporary_bytes,
        "stated": stated["stated_temp_bytes"] + results,
        "peak": program.peak_bytes,
        "fed": program.input_feed_bytes,
        "collectives": held_bytes(program)[COLLECTIVES],
        "kernel": next(b.size_bytes for b in program.buffers if b.name == "dense_1/kernel"),
    }


def said_of_an_indivisible_kernel(x):
    with kr.liveness.abstract():
        inputs = keras.Input((64,))
        model = keras.Model(inputs, L.Dense(6, name="dense_odd")(inputs))
    model.compile("sgd", "mse")
    try:
        kr.liveness.profile(model, x, np.zeros((len(x), 6), "float32"))
    except kr.errors.InvalidArgumentError as error:
        return str(error)


def planned_for(budget, x, y):
    model = network()
    model.compile("adam", "mse")
    planned, plan = kr.plan(model, memory_budget=budget, sample=(x, y))
    planned.compile("adam", "mse")
    peak = kr.liveness.profile(planned, x, y).peak_bytes
    return planned, {"budget": budget, "said": plan.compiled_peak_bytes, "peak": peak}


def main(kind):
    distribute(kind)
    draw = np.random.RandomState(0)
    x, y = draw.rand(512, 64).astype("float32"), draw.rand(512, 8).astype("float32")
    found = {"plain": trained(network(), x, y)}
    found["checkpointed"] = trained(kr.checkpointed(network(), every=3), x, y)
    planned, found["planned"] = planned_for(int(0.9 * found["plain"]["peak"]), x, y)
    # The module that the compiler of a device is given; the compiler itself is not needed for it.
    described = find_device("h100")
    options = {"input_feed": None, "layers_of": None, "target": described}
    module = trace_function(planned, (x, y), {}, **options).lowered.as_text()
    found["devices"] = devices_of(module.encode())
    try:
        kr.liveness.profile(planned, x, y, device="local")
    except kr.errors.UnsupportedError as error:
        found["refusal"] = str(error)
    if kind == "model":
        found["indivisible"] = said_of_an_indivisible_kernel(x)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
