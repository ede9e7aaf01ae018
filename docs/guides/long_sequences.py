"""
Title: Long sequences
Description: Recurrent layers and attention over many steps, without keeping every step.
"""

"""
A recurrent layer over a thousand steps keeps what each step computes. Attention over a thousand
tokens keeps a million numbers for each head. A checkpoint between layers lowers neither: the
memory is **inside** of one layer. This guide shows four ways, each with its figure:

1. sections in time, on each backend;
2. Keras's own recurrent layers, cut along time by themselves;
3. `kr.LSTM` and `kr.GRU`, with the arguments and weights of Keras's;
4. `kr.MultiHeadAttention`, which never holds all probabilities.

It takes a minute on two cores and downloads nothing.

```
pip install "keras-recompute[tensorflow]"
python3 long_sequences.py
```

## Sections in time

The network reads 256 steps of 64 features, and says one number for each step.
"""

import keras
import numpy as np
from keras import layers

import keras_recompute as kr

STEPS, FEATURES, UNITS, BATCH = 256, 64, 64, 16
rng = np.random.default_rng(0)
x = rng.standard_normal((BATCH, STEPS, FEATURES)).astype("float32")
y = rng.standard_normal((BATCH, STEPS, 1)).astype("float32")


def keras_lstm():
    options = {"return_sequences": True, "return_state": True}
    if keras.backend.backend() == "torch":  # there Keras's LSTM takes time by the square of steps
        return layers.RNN(layers.LSTMCell(UNITS), **options)
    return layers.LSTM(UNITS, **options)


"""
`kr.TimeSlice` takes some of the steps. The layer runs on each slice in turn, and hands its states
on. `kr.RecomputationCheckpoint` marks these states: they are kept, and the steps before them are
computed again in the backward pass. The best number of sections is near the root of the steps.
"""


def network(layer, sections):
    length = STEPS // sections
    inputs = keras.Input((STEPS, FEATURES))
    state, outputs = None, []
    for begin in range(0, STEPS, length):
        part = kr.TimeSlice(begin, begin + length)(inputs)
        found, *state = layer(part, initial_state=state)
        if begin + length < STEPS:
            state = kr.RecomputationCheckpoint()(state)
        outputs.append(found)
    joined = layers.Concatenate(axis=1)(outputs) if sections > 1 else found
    return kr.Model(inputs, layers.Dense(1)(joined))


def needed_mebibytes(model, x, y):
    model.compile("adam", "mse")
    return kr.liveness.profile(model, x, y).not_always_live_peak_bytes / 2**20


plain_lstm = needed_mebibytes(network(keras_lstm(), sections=1), x, y)
cut = needed_mebibytes(network(keras_lstm(), sections=16), x, y)
print(f"LSTM: {plain_lstm:.1f} MiB in one, {cut:.1f} MiB in 16 sections")
assert cut < plain_lstm / 2

"""
The figures of this guide leave out weights and optimizer, which do not grow with the sequence.

## Keras's layers, cut by themselves

Masks, both directions, and a sequence that ends in one number make slices harder to write. You need
not write them. In the training step of a model with checkpoints every recurrent layer of Keras is
cut into about as many sections as the root of its steps. Name any place for a checkpoint:
"""


# On PyTorch each step is several calls from Python, and recording 512 of them takes minutes.
WORDS = 64 if keras.backend.backend() == "torch" else 512


def classifier():
    tokens = keras.Input((WORDS,), dtype="int32")
    found = layers.Embedding(1000, 32, mask_zero=True, name="embedding")(tokens)
    found = layers.Bidirectional(layers.LSTM(32))(found)
    return keras.Model(tokens, layers.Dense(1)(found))


tokens, targets = rng.integers(0, 1000, (8, WORDS)), np.zeros((8, 1))
whole = classifier()
plain = needed_mebibytes(whole, tokens, targets)
cut = needed_mebibytes(kr.checkpointed(whole, at=["embedding"]), tokens, targets)
print(f"classifier: {plain:.1f} MiB plain, {cut:.1f} MiB cut along time")
assert cut < plain / 2

"""
## A layer that keeps less

`kr.LSTM` and `kr.GRU` have a backward pass of their own. It writes over what it has read, and
multiplies for the gradients of the weights once, after all steps. So a layer takes less memory and
less time than Keras's, without any checkpoint. Sections work with it too.
"""


def kr_lstm():
    return kr.LSTM(UNITS, return_sequences=True, return_state=True)


fused = needed_mebibytes(network(kr_lstm(), sections=1), x, y)
both = needed_mebibytes(network(kr_lstm(), sections=16), x, y)
print(f"kr.LSTM: {fused:.1f} MiB in one, {both:.1f} MiB in 16 sections")
assert both < fused < plain_lstm

"""
It has Keras's weights. A network that was trained with one is loaded with the other:
"""

ours, theirs = network(kr_lstm(), 16), network(keras_lstm(), 1)
theirs.set_weights(ours.get_weights())
np.testing.assert_allclose(
    ours.predict(x, verbose=0), theirs.predict(x, verbose=0), rtol=1e-3, atol=1e-4
)

"""
## Attention

Keras's layer keeps a probability for each pair of tokens and each head. `kr.MultiHeadAttention`
takes the same arguments and weights. It computes probabilities a few heads or queries at a time,
and computes them again in the backward pass.
"""


def attention(layer):
    inputs = keras.Input((STEPS * 2, FEATURES))
    found = layer(num_heads=4, key_dim=16)(inputs, inputs, use_causal_mask=True)
    return keras.Model(inputs, layers.Dense(1)(found))


longer, targets = np.tile(x[:4], (1, 2, 1)), np.tile(y[:4], (1, 2, 1))
whole = needed_mebibytes(attention(layers.MultiHeadAttention), longer, targets)
tiled = needed_mebibytes(attention(kr.MultiHeadAttention), longer, targets)
print(f"attention: {whole:.1f} MiB with Keras's layer, {tiled:.1f} MiB with ours")
if keras.backend.backend() != "torch":  # PyTorch's own attention keeps no probabilities either
    assert tiled < 0.6 * whole

"""
On TensorFlow this guide prints:

```
LSTM: 27.2 MiB in one, 1.5 MiB in 16 sections
classifier: 50.4 MiB plain, 2.9 MiB cut along time
kr.LSTM: 7.2 MiB in one, 2.1 MiB in 16 sections
attention: 50.5 MiB with Keras's layer, 26.8 MiB with ours
```

The classifier is the layer of one number behind 512 steps.

## Where backends differ

| | TensorFlow | JAX | PyTorch |
|---|---|---|---|
| sections in time by `kr.TimeSlice` | yes | yes | yes, with `keras.layers.RNN` of cells |
| Keras's recurrent layers are cut by themselves | without cuDNN | without cuDNN | yes |
| `kr.LSTM`, `kr.GRU` | yes | yes | yes, without second derivatives |
| `kr.MultiHeadAttention` saves more than Keras's | yes | yes | no: PyTorch's own saves as much |
| Keras's layers on cuDNN | with `jit_compile=False` | LSTM, not if `use_cudnn=False` | LSTM, GRU |

## If it does not save enough

* **Is it the loss?** A loss of all outputs of a long sequence needs them all at once. Compute it
  inside of [the sections](../choosing.md#the-loss-inside-the-sections).
* **Is it the embedding of a large vocabulary?** Its gradient has a row for each token that is
  looked up, whatever is recomputed.
* **Take more levels.** On TensorFlow `model.recomputation_levels = 2` makes sections of sections,
  for one more forward pass.
* **Take checkpoints between layers too**, if there are many of them: `kr.checkpointed(model,
  every=2)`.
* **Cut the sequences.** `stateful=True` trains on one part after the other, without gradients
  between them. That changes what is learnt; nothing above does.
* [docs/out-of-memory.md](../out-of-memory.md) has the other questions to ask.
"""
