"""Policies in the configurations of layers: serialization and deserialization."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import keras

from ..engine import policies
from ..engine.policies import Policy
from ..errors import UnsupportedError


def policy_key(policy: Policy) -> Hashable:
    """Return a key that is equal for equal policies."""
    try:
        hash(policy)
    except TypeError:
        return id(policy)  # kept by the class that is made for it
    return policy


def policy_to_config(policy: Policy, layer: str) -> dict[str, Any]:
    """Return ``policy`` in a form that JSON can hold.

    Raises UnsupportedError for a user's policy that Keras could not find again. ``layer`` is the
    name of the layer that has it.
    """
    if _is_ours(policy):
        values = {}
        for field in dataclasses.fields(policy):  # type: ignore[arg-type]
            values[field.name] = _value_to_config(getattr(policy, field.name), layer)
        return {"policy": type(policy).__name__, "fields": values}
    if not _is_found_again(policy):
        raise UnsupportedError(
            f"{layer!r} is recomputed by the policy {policy!r}, which cannot be loaded from a "
            "file. Give one of keras_recompute.policies, a function of a module, or an object "
            "with get_config and from_config"
        )
    return {"keras": keras.saving.serialize_keras_object(policy)}


def policy_from_config(config: dict[str, Any]) -> Policy:
    """Return the policy that ``policy_to_config`` serialized."""
    if "keras" in config:
        policy: Policy = keras.saving.deserialize_keras_object(config["keras"])
        return policy
    kind: Any = getattr(policies, config["policy"])
    return kind(**{name: _value_from_config(value) for name, value in config["fields"].items()})


def _is_ours(policy: Policy) -> bool:
    return type(policy).__module__ == policies.__name__ and dataclasses.is_dataclass(policy)


def _is_found_again(policy: Any) -> bool:
    """Whether Keras can import a function, or reconstruct an object."""
    if not hasattr(policy, "__qualname__"):
        return hasattr(policy, "get_config")
    is_registered = keras.saving.get_registered_name(policy) != policy.__name__
    return is_registered or "<" not in policy.__qualname__  # as in f.<locals>.g, <lambda>


def _value_to_config(value: Any, layer: str) -> Any:
    if not isinstance(value, frozenset):
        return value
    items = [item if isinstance(item, str) else policy_to_config(item, layer) for item in value]
    # Sorted, so that equal policies have equal files.
    return sorted(items, key=repr)


def _value_from_config(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return frozenset(item if isinstance(item, str) else policy_from_config(item) for item in value)
