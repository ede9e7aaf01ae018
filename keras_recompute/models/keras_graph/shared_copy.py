"""Copies of models that share layers, weights and attributes, but train on their own.

KerasHub's backbones and tasks are functional models whose classes add methods: ``generate``, a
preprocessor, a configuration of their own. Such a model is copied without running its ``__init__``,
from its graph and its attributes. The class of the copy derives from both a class of this package
and that of the model. The copy has a state of training of its own (compiled or not, optimizer,
history), so the model itself stays as it was.
"""

from __future__ import annotations

from typing import Any

import keras

from ...layers.mixed_class import (
    OURS,
    SAVED_AS,
    SavedAsPlain,
    class_config,
    mixed_class,
    original_class,
)
from ...seams.keras.construction import copy_without_constructor


class SavedCopy(SavedAsPlain):
    """Mixin of a copy: files have the model that it was made of, with an entry for the rest."""

    def _saved_changes(self) -> dict[str, Any]:
        """Return what ``_with_changes`` makes of the model that this one was made of."""
        raise NotImplementedError

    @classmethod
    def _with_changes(cls, plain: Any, changes: dict[str, Any]) -> Any:
        """Return the copy of ``plain`` with ``changes`` as they were saved."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        ours = {"class": class_config(original_class(type(self))), **self._saved_changes()}
        return {**self.plain_config(), SAVED_AS: ours}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        changes = config.pop(SAVED_AS, None)
        # A configuration of the model's own class.
        if changes is None:
            own: Any = original_class(cls)
            return own.from_config(config)
        changes = dict(changes)
        build_config = changes.pop("build", None)
        saved = {**changes.pop("class"), "config": config, "build_config": build_config}
        plain = keras.saving.deserialize_keras_object(saved, custom_objects=custom_objects)
        return cls._with_changes(plain, changes)


def copy_sharing_weights(model: keras.Model, ours: type) -> Any:
    """Return a copy of ``model`` of its class and of the class ``ours``.

    It shares layers, weights and attributes with ``model``, which is functional, or built. The
    result is not compiled.
    """
    return copy_without_constructor(
        model, mixed_class(original_class(type(model)), ours), without=OURS
    )
