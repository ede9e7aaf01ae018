"""A tree of options with strict types and fixed names.

The tree converts to text, dictionary and JSON. Source: Graphcore, IPUConfig.
"""

from __future__ import annotations

import copy
import difflib
import enum
import json
import logging
from collections.abc import Sequence
from typing import Any

from .options import Option

_LOG = logging.getLogger(__name__)


class AttributeMetadata:
    """Name, type, default and deprecation of an option."""

    def __init__(self, option: Option) -> None:
        self._option = option
        self.__doc__ = (
            f"{option.becomes}."
            if option.refused_as is None
            else "Refused where it would change results or memory."
        )

    @property
    def name(self) -> str:
        """The full name."""
        return self._option.name

    @property
    def type(self) -> str:
        """The type of its values."""
        return self._option.type_name or type(self._option.default).__name__

    @property
    def default(self) -> Any:
        """The default value."""
        return copy.deepcopy(self._option.default)

    @property
    def deprecated(self) -> bool:
        """Whether another option replaces it."""
        return self._option.deprecated is not None

    @property
    def deprecated_msg(self) -> str | None:
        """What to use instead if it is deprecated."""
        return self._option.deprecated

    def check_type(self, value: Any) -> None:
        """Raise TypeError unless ``value`` has exactly the option's type.

        True is not an int here, and an int is not a float.
        """
        # isinstance would accept True for an int.
        fits = self._option.fits or (lambda given: type(given) is type(self._option.default))
        if not fits(value):
            raise TypeError(
                f"{self.name!r} must be of type {self.type}, but was given {value!r} of type "
                f"{type(value).__name__}"
            )

    def warn_if_deprecated(self) -> None:
        """Log a warning if the option is deprecated."""
        if self.deprecated:
            _LOG.warning("%s is deprecated: %s", self.name, self.deprecated_msg)


class Category:
    """A node of the tree: its attributes are options and categories, and are fixed."""

    def __init__(self, options: Sequence[Option], path: str = "") -> None:
        values: dict[str, Any] = {}
        metadata: dict[str, AttributeMetadata] = {}
        for option in options:
            name, _, deeper = option.name[len(path) :].partition(".")
            if deeper and name not in values:
                inside = f"{path}{name}."
                values[name] = Category([o for o in options if o.name.startswith(inside)], inside)
            elif not deeper:
                values[name], metadata[name] = (
                    copy.deepcopy(option.default),
                    AttributeMetadata(option),
                )
        # __setattr__ accepts options only.
        vars(self).update(_path=path, _values=values, _metadata=metadata)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_path", "_values", "_metadata"):
            # Python itself looks these up, also on an object that is being copied.
            raise AttributeError(name)
        self._require(name)
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._require(name)
        if isinstance(self._values[name], Category):
            inside = ", ".join(self._values[name]._values)
            raise Exception(
                f"{self._path + name!r} is a category, not an option: set one of {inside} in it"
            )
        self._metadata[name].warn_if_deprecated()
        self._metadata[name].check_type(value)
        self._values[name] = value

    def _require(self, name: str) -> None:
        if name not in self._values:
            near = difflib.get_close_matches(name, self._values, n=1)
            hint = (
                f" Did you mean {self._path + near[0]!r}?"
                if near
                else f" There are: {', '.join(self._values)}."
            )
            raise ValueError(f"{self._path + name!r} is not an option of IPUConfig.{hint}")

    def get_attribute_metadata(self, attr: str) -> AttributeMetadata:
        """Return the metadata of option ``attr``, a path from this node.

        Raises ValueError if there is no such option.
        """
        category, (*path, name) = self, attr.split(".")
        for part in path:
            category = getattr(category, part)
            if not isinstance(category, Category):
                raise ValueError(f"{attr!r}: {part!r} is an option and has nothing in it")
        category._require(name)
        if name not in category._metadata:
            raise ValueError(
                f"{attr!r} is a category, not an option: ask for one of "
                f"{', '.join(category._values[name]._values)}"
            )
        return category._metadata[name]

    def options(self) -> dict[str, Any]:
        """Return all values by full name."""
        found: dict[str, Any] = {}
        for name, value in self._values.items():
            found.update(
                value.options() if isinstance(value, Category) else {f"{self._path}{name}": value}
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return all values by full name, with enumerations as numbers."""
        return {
            name: value.value if isinstance(value, enum.Enum) else value
            for name, value in self.options().items()
        }

    def from_dict(self, dct: dict[str, Any]) -> None:
        """Set the values of ``dct``, as ``to_dict`` returned them.

        Options that ``dct`` lacks keep their value, which is logged.
        """
        for name, value in self._values.items():
            full = f"{self._path}{name}"
            if isinstance(value, Category):
                value.from_dict(dct)
            elif full not in dct:
                _LOG.warning("%s is not in the configuration given: it stays %r", full, value)
            else:
                default = self._metadata[name].default
                given = type(default)(dct[full]) if isinstance(default, enum.Enum) else dct[full]
                if given != value:
                    setattr(self, name, given)

    def to_json(self) -> str:
        """Return ``to_dict`` as JSON text."""
        return json.dumps(self.to_dict())

    def from_json(self, json_cfg: str) -> None:
        """Set the values of ``json_cfg``, as ``to_json`` returned them."""
        self.from_dict(json.loads(json_cfg))

    def __str__(self) -> str:
        lines = (
            f"{name} = {value if isinstance(value, enum.Enum) else repr(value)}"
            for name, value in self.options().items()
        )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return "\n".join(
            [f"{type(self).__name__}:", *(f"  {line}" for line in str(self).splitlines())]
        )
