"""
Title: Fine-tune a language model with LoRA
Description: A model of KerasHub, with few trained weights and few kept activations.
"""

"""
LoRA trains two thin matrices beside each large one. That saves the gradients and the optimizer
states of the large ones. It does not save the **activations**, which the backward pass still
needs. With long texts these are most of the memory. In this guide you put both together: LoRA
for the weights, and checkpoints for the activations.

The model is a small GPT-2 of KerasHub with random weights, so nothing is downloaded. It runs in a
minute on two cores. With a preset, such as `GPT2CausalLM.from_preset("gpt2_base_en")`, all lines
stay the same.

```
pip install "keras-recompute[jax]" keras-hub
KERAS_BACKEND=jax python3 language_model.py
```

## The model and a batch

A KerasHub task has a preprocessor that makes tokens of texts. Here the tokens are random.
"""

import keras
import keras_hub
import numpy as np

import keras_recompute as kr

WORDS, TOKENS, BATCH = 200, 128, 8


def build():
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=WORDS,
        num_layers=6,
        num_heads=4,
        hidden_dim=128,
        intermediate_dim=512,
        max_sequence_length=TOKENS,
    )
    return keras_hub.models.GPT2CausalLM(backbone=backbone)


tokens = np.random.default_rng(0).integers(1, WORDS, (BATCH, TOKENS + 1))
x = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((BATCH, TOKENS), "int32")}
y = tokens[:, 1:]
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def report(model):
    model.compile(keras.optimizers.AdamW(1e-3), loss=loss)
    record = kr.liveness.profile(model, x, y)
    print(
        f"always there: {record.always_live_bytes / 2**20:5.1f} MiB, "
        f"in a step: {record.not_always_live_peak_bytes / 2**20:5.1f} MiB"
    )
    return record


plain = report(build())

"""
The first figure is what is always there: weights and the states of AdamW. The second is what one
step adds to it, mostly activations.

## LoRA alone

`enable_lora` freezes the weights of the backbone and adds the thin matrices, here of rank 4.
"""

model = build()
model.backbone.enable_lora(4)
lora = report(model)
assert lora.always_live_bytes < 0.6 * plain.always_live_bytes
assert lora.not_always_live_peak_bytes > 0.7 * plain.not_always_live_peak_bytes

"""
The states of the optimizer are nearly gone. But a step takes more than two thirds of what it took.

## LoRA and checkpoints

`every=2` puts a checkpoint behind every second layer of the backbone. In a KerasHub task the
backbone is an inner model, and its layers are counted. The result is a `GPT2CausalLM` still, with
its `preprocessor`, `backbone` and `generate`.
"""

saving = kr.checkpointed(model, every=2)
both = report(saving)
assert isinstance(saving, keras_hub.models.GPT2CausalLM)
assert both.not_always_live_peak_bytes < lora.not_always_live_peak_bytes / 2

"""
## It trains the same

On JAX and PyTorch the `fit` of a KerasHub task needs `pip install grain`, and `train_on_batch`
needs nothing.
"""


def train(change):
    model = build()
    model.backbone.enable_lora(4)
    model = change(model)
    model.compile(keras.optimizers.AdamW(1e-3), loss=loss)
    return [float(model.train_on_batch(x, y, return_dict=True)["loss"]) for _ in range(3)]


expected = train(lambda model: model)
found = train(lambda model: kr.checkpointed(model, every=2))
print("losses:", *(f"{value:.4f}" for value in [*expected, *found]))
np.testing.assert_allclose(found, expected, rtol=1e-3)

"""
GPT-2 has dropout, whose masks in the repeated computation are those of the forward pass. Layers in
front of the first trained weight are neither run again nor differentiated.

## Keep the fine-tuned weights

Weight files load both ways between a model with checkpoints and the plain one:
"""

saving.save_weights("tuned.weights.h5")
model.load_weights("tuned.weights.h5")

"""
Call `save_to_preset` on the plain model, which has the same weights.

## Where backends differ

| | TensorFlow | JAX | PyTorch |
|---|---|---|---|
| `checkpointed` on tasks and backbones | yes | yes | yes |
| the figures here | compiled by XLA for this CPU | compiled by XLA for this CPU | recorded on tensors without values |
| a preset of 8 billion weights, without its weights | no | `kr.liveness.abstract()` | no |
| `keras.RematScope(mode="full")` on KerasHub's models | fails or other masks | fails | other masks |

[The zoo](../zoo-backends.md) has the measurements of many KerasHub models.

## If it does not save enough

* **Recompute every block:** `kr.checkpointed(model, every=1)`, or for models that hold their blocks
  in one layer `layers="transformer_block_*"`.
* **Is it the logits?** A vocabulary of 100,000 words and 2,048 tokens takes 780 MiB for each
  sequence, and its gradient as much. Take shorter texts or a smaller batch.
* **Are the frozen weights most of it?** Load them in half precision or int8:
  `keras.config.set_dtype_policy("bfloat16")`, or `model.quantize("int8")` before `enable_lora`.
* **Will the full model train on your GPU?** `keras-recompute fits Llama3Backbone:llama3_8b.json
  --device h100 --lora 8` answers without it: [models of full size](../full-size.md).
* [docs/out-of-memory.md](../out-of-memory.md) has the other questions to ask.
"""
