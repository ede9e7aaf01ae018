"""The models of the zoo: one of every family of keras.applications and of KerasHub's backbones,
small, with random weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

IMAGES = {  # of keras.applications: sides of the images, batch
    "VGG16": (64, 8),
    "ResNet50": (64, 8),
    "ResNet50V2": (64, 8),
    "InceptionV3": (96, 8),
    "InceptionResNetV2": (96, 4),
    "Xception": (96, 8),
    "DenseNet121": (64, 8),
    "MobileNet": (64, 8),
    "MobileNetV2": (64, 8),
    "MobileNetV3Small": (64, 8),
    "NASNetMobile": (64, 4),
    "EfficientNetB0": (64, 8),
    "EfficientNetV2B0": (64, 8),
    "ConvNeXtTiny": (64, 8),
}
SMALL = {"num_layers": 6, "hidden_dim": 64, "intermediate_dim": 128, "dropout": 0.0}
ROTARY = {"num_query_heads": 4, "num_key_value_heads": 2}


class Part(NamedTuple):
    """A class of KerasHub's and what it is given, which may be parts in turn."""

    name: str
    options: dict[str, Any]

    def made(self) -> Any:
        import keras_hub

        options = {
            key: value.made() if isinstance(value, Part) else value
            for key, value in self.options.items()
        }
        return getattr(keras_hub.models, self.name)(**options)


# Of KerasHub: what the class is given, and the shape of all its inputs or of each.
HUB: dict[str, tuple[dict[str, Any], Any]] = {
    "BertBackbone": (
        {"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL},
        (8, 128),
    ),
    "RobertaBackbone": (
        {"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL},
        (8, 128),
    ),
    "DistilBertBackbone": (
        {"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL},
        (8, 128),
    ),
    "AlbertBackbone": (
        {
            "vocabulary_size": 500,
            "num_heads": 4,
            "embedding_dim": 32,
            "max_sequence_length": 128,
            **SMALL,
        },
        (8, 128),
    ),
    "DebertaV3Backbone": (
        {
            "vocabulary_size": 500,
            "num_heads": 4,
            "max_sequence_length": 64,
            "bucket_size": 32,
            **SMALL,
        },
        (4, 64),
    ),
    "GPT2Backbone": (
        {"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL},
        (8, 128),
    ),
    "GPTNeoXBackbone": (
        {"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL},
        (8, 128),
    ),
    "OPTBackbone": (
        {"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 128, **SMALL},
        (8, 128),
    ),
    "LlamaBackbone": ({"vocabulary_size": 500, **ROTARY, **SMALL}, (8, 128)),
    "MistralBackbone": ({"vocabulary_size": 500, **ROTARY, **SMALL}, (8, 128)),
    "GemmaBackbone": ({"vocabulary_size": 500, **ROTARY, "head_dim": 16, **SMALL}, (8, 128)),
    "FNetBackbone": ({"vocabulary_size": 500, "max_sequence_length": 128, **SMALL}, (8, 128)),
    "BartBackbone": (
        {"vocabulary_size": 500, "num_heads": 4, "max_sequence_length": 64, **SMALL},
        (8, 64),
    ),
    "ViTBackbone": (
        {
            "image_shape": (64, 64, 3),
            "patch_size": 8,
            "num_layers": 6,
            "num_heads": 4,
            "hidden_dim": 64,
            "mlp_dim": 128,
        },
        (8, 64, 64, 3),
    ),
    "SegFormerBackbone": (
        {
            "image_encoder": Part(
                "MiTBackbone",
                {
                    "layerwise_depths": [2, 2, 2, 2],
                    "num_layers": 4,
                    "layerwise_num_heads": [1, 2, 4, 8],
                    "layerwise_sr_ratios": [8, 4, 2, 1],
                    "max_drop_path_rate": 0.0,
                    "layerwise_patch_sizes": [7, 3, 3, 3],
                    "layerwise_strides": [4, 2, 2, 2],
                    "image_shape": (64, 64, 3),
                    "hidden_dims": [16, 32, 48, 64],
                },
            ),
            "projection_filters": 64,
        },
        (8, 64, 64, 3),
    ),
    "WhisperBackbone": (
        {
            "vocabulary_size": 500,
            "num_heads": 4,
            "max_encoder_sequence_length": 200,
            "max_decoder_sequence_length": 64,
            **SMALL,
        },
        {
            "encoder_features": (4, 200, 80),
            "decoder_token_ids": (4, 64),
            "decoder_padding_mask": (4, 64),
        },
    ),
    "FluxBackbone": (
        {
            "input_channels": 16,
            "hidden_size": 64,
            "mlp_ratio": 2.0,
            "num_heads": 4,
            "depth": 3,
            "depth_single_blocks": 3,
            "axes_dim": [4, 6, 6],
            "theta": 10000,
            "use_bias": True,
            "guidance_embed": True,
            "image_shape": (32, 16),
            "text_shape": (16, 64),
            "image_ids_shape": (32, 3),
            "text_ids_shape": (16, 3),
            "y_shape": (32,),
        },
        {
            "image": (8, 32, 16),
            "image_ids": (8, 32, 3),
            "text": (8, 16, 64),
            "text_ids": (8, 16, 3),
            "y": (8, 32),
            "timesteps": (8,),
            "guidance": (8,),
        },
    ),
}
# Whose blocks stand inside one layer: each of them is recomputed, and ``every`` is of no use.
BLOCKS = {"ViTBackbone": "transformer_block_*"}
WITHOUT_DROPOUT = ("LlamaBackbone", "MistralBackbone", "GemmaBackbone", "ViTBackbone")


def build(name: str) -> tuple[Any, list[Any]]:
    """Return the model and a batch of its inputs, flat."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    if name in IMAGES:
        side, batch = IMAGES[name]
        model = getattr(keras.applications, name)(
            weights=None, input_shape=(side, side, 3), classes=10
        )
        return model, [rng.normal(size=(batch, side, side, 3)).astype(keras.config.floatx())]
    options, shapes = HUB[name]
    options = {
        key: value
        for key, value in options.items()
        if not (name in WITHOUT_DROPOUT and key == "dropout")
    }
    model = Part(name, options).made()
    values = []
    for tensor in model.inputs:
        shape = shapes[tensor.name] if isinstance(shapes, dict) else shapes
        if tensor.dtype.startswith("int"):
            of_tokens = "token_ids" in tensor.name
            values.append(
                rng.integers(1, 500, shape)
                if of_tokens
                else np.full(shape, int("mask" in tensor.name))
            )
        else:
            values.append(rng.normal(size=shape))
    return model, [value.astype(tensor.dtype) for tensor, value in zip(model.inputs, values)]
