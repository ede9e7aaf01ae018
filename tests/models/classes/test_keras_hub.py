"""KerasHub's backbones and tasks, tiny and with random weights: they train as their plain twins,
and stay what they are.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning
from keras_recompute.models.keras_graph.section_loops import SectionLoop

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the packages that it imports
    keras_hub = pytest.importorskip("keras_hub")

LENGTH, WORDS = 8, 40
TOKENS = np.random.default_rng(0).integers(1, WORDS, (4, LENGTH))
TEXT = {"token_ids": TOKENS, "padding_mask": np.arange(LENGTH) < np.array([[8], [8], [5], [3]])}
SEGMENTS = {**TEXT, "segment_ids": np.zeros((4, LENGTH), int)}
IMAGES = np.random.default_rng(0).standard_normal((2, 16, 16, 3)).astype("float32")


SMALL = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "dropout": 0.0}


def bert() -> keras.Model:
    return keras_hub.models.BertBackbone(vocabulary_size=WORDS, max_sequence_length=LENGTH, **SMALL)


def gpt2() -> keras.Model:
    return keras_hub.models.GPT2Backbone(vocabulary_size=WORDS, max_sequence_length=LENGTH, **SMALL)


def llama() -> keras.Model:
    return keras_hub.models.LlamaBackbone(
        vocabulary_size=WORDS,
        num_layers=3,
        num_query_heads=2,
        num_key_value_heads=1,
        hidden_dim=8,
        intermediate_dim=16,
    )


def vit() -> keras.Model:
    return keras_hub.models.ViTBackbone(
        image_shape=(16, 16, 3), patch_size=4, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16
    )


def classifier() -> keras.Model:
    return keras_hub.models.BertTextClassifier(bert(), num_classes=3, dropout=0.0)


def language_model() -> keras.Model:
    return keras_hub.models.GPT2CausalLM(gpt2())


def image_classifier() -> keras.Model:
    return keras_hub.models.ViTImageClassifier(vit(), num_classes=3)


NEXT = np.random.default_rng(1).integers(0, WORDS, (4, LENGTH))
CROSS_ENTROPY = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
CASES = {
    "bert": (
        bert,
        SEGMENTS,
        {"sequence_output": np.ones((4, LENGTH, 8)), "pooled_output": np.ones((4, 8))},
        {"loss": "mse"},
    ),
    "llama": (llama, TEXT, np.ones((4, LENGTH, 8)), {"loss": "mse"}),
    "text classifier": (classifier, SEGMENTS, np.array([0, 2, 1, 1]), CROSS_ENTROPY),
    "language model": (language_model, TEXT, NEXT, CROSS_ENTROPY),
    "image classifier": (image_classifier, IMAGES, np.array([0, 2]), CROSS_ENTROPY),
}


def model_pair(build) -> tuple[keras.Model, keras.Model]:
    made = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        made.append(build())
    return made[0], made[1]


def trained(model: keras.Model, x, y, loss: dict, *, jit: bool) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # KerasHub's
        # Not Adam: it divides gradients that are nothing but rounding, as those of a bias of keys
        # are, by their size.
        model.compile(keras.optimizers.SGD(0.1), **loss, jit_compile=jit)
        return model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]


def assert_same_weights(ours: keras.Model, plain: keras.Model) -> None:
    for a, b in zip(ours.weights, plain.weights, strict=True):
        assert a.path.split("/")[-2:] == b.path.split("/")[-2:]
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=a.path)


@pytest.mark.parametrize(
    ("case", "jit"),
    [*((case, False) for case in CASES if case != "llama"), ("text classifier", True)],
)
def test_it_trains_as_the_plain_one(case, jit):
    build, x, y, loss = CASES[case]
    plain, base = model_pair(build)
    ours = kr.checkpointed(base, every=1)
    assert isinstance(ours, type(base))
    assert sum(step.recomputed for step in ours.plan.steps) >= 2, (
        "the layers of the backbone are cut, not the backbone"
    )
    np.testing.assert_allclose(
        trained(ours, x, y, loss, jit=jit), trained(plain, x, y, loss, jit=jit), rtol=1e-5
    )
    assert_same_weights(ours, plain)


def test_a_language_model_generates_and_keeps_its_config():
    plain, base = model_pair(language_model)
    ours = kr.checkpointed(base, every=2)
    assert ours.backbone is base.backbone
    assert ours.preprocessor is None
    for model in (ours, plain):
        model.compile(sampler="greedy")
    prompt = {
        "token_ids": TOKENS[:, :LENGTH],
        "padding_mask": np.arange(LENGTH) < np.full((4, 1), 3),
    }
    np.testing.assert_array_equal(
        ours.generate(prompt, stop_token_ids=None)["token_ids"],
        plain.generate(prompt, stop_token_ids=None)["token_ids"],
    )
    assert {
        k: v
        for k, v in ours.get_config().items()
        if k not in ("keras_recompute", "name", "backbone")
    } == {"preprocessor": None}


def test_a_saved_task_comes_back_with_its_checkpoints(tmp_path):
    base = keras_hub.models.BertTextClassifier(bert(), num_classes=3, compile=False)
    ours = kr.checkpointed(base, every=2)
    ours.save(tmp_path / "task.keras")
    back = keras.saving.load_model(tmp_path / "task.keras")
    assert isinstance(back, keras_hub.models.BertTextClassifier)
    assert [len(step.calls) for step in back.plan.steps] == [
        len(step.calls) for step in ours.plan.steps
    ]
    np.testing.assert_allclose(
        back.predict(SEGMENTS, verbose=0), ours.predict(SEGMENTS, verbose=0), rtol=1e-6
    )
    ours.save_weights(tmp_path / "task.weights.h5")
    base.load_weights(tmp_path / "task.weights.h5")


def test_lora_is_enabled_on_either_of_the_two():
    plain, base = model_pair(language_model)
    ours = kr.checkpointed(base, every=2)
    for model in (plain, base):
        keras.utils.set_random_seed(2)
        model.backbone.enable_lora(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecomputeWarning)
        losses = [trained(model, TEXT, NEXT, CROSS_ENTROPY, jit=False) for model in (ours, plain)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert len(ours.trainable_variables) == len(plain.trainable_variables) > 0
    assert_same_weights(ours, plain)


def test_loops_over_the_blocks_of_llama_whose_config_fails():
    plain, base = model_pair(llama)
    ours = kr.checkpointed(base, every=1)
    ours.scan_layers = True
    assert any(isinstance(step, SectionLoop) for step in ours.plan.steps)
    _, x, y, loss = CASES["llama"]
    np.testing.assert_allclose(
        trained(ours, x, y, loss, jit=True), trained(plain, x, y, loss, jit=True), rtol=1e-5
    )
    assert_same_weights(ours, plain)


def test_the_blocks_inside_one_layer_are_reached(tmp_path):
    """The blocks of a ViT sit in a layer in the backbone, and that in a model in the task."""
    plain, base = model_pair(image_classifier)
    ours = kr.checkpointed(base, layers="transformer_block_*")
    assert len(ours.recomputed_layers) == 2
    _, x, y, loss = CASES["image classifier"]
    np.testing.assert_allclose(
        trained(ours, x, y, loss, jit=False), trained(plain, x, y, loss, jit=False), rtol=1e-5
    )
    assert_same_weights(ours, plain)
    ours.save(tmp_path / "task.keras")
    back = keras.saving.load_model(tmp_path / "task.keras", compile=False)
    assert len(back.recomputed_layers) == 2
    assert isinstance(back, keras_hub.models.ViTImageClassifier)
