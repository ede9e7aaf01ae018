"""Random numbers of a replay: those that the operation drew before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .torch_values import leaves_of


@dataclass(frozen=True, eq=False)
class GeneratorState:
    """A generator that a program gave to an operation, as it was then."""

    device: torch.device
    state: torch.Tensor

    @classmethod
    def of(cls, generator: torch.Generator) -> GeneratorState:
        """Return the state of ``generator`` now."""
        return cls(generator.device, generator.get_state())

    def generator(self) -> torch.Generator:
        """Return a new generator in this state."""
        generator = torch.Generator(device=self.device)
        generator.set_state(self.state)
        return generator


@dataclass(frozen=True, eq=False)
class DefaultState:
    """The state of PyTorch's own generator on one device."""

    device: torch.device
    state: torch.Tensor

    @classmethod
    def before(cls, operation: Any, args: Any, kwargs: dict[str, Any]) -> DefaultState | None:
        """Return the state that ``operation`` will draw from; None if it draws nothing of it."""
        if torch.Tag.nondeterministic_seeded not in operation.tags:
            return None
        given = list(leaves_of((args, kwargs)))
        if any(isinstance(each, torch.Generator) for each in given):
            return None
        devices = [each.device for each in given if isinstance(each, torch.Tensor)]
        named = kwargs.get("device")
        device = torch.device(named) if named is not None else next(iter(devices), None)
        if device is None or device.type in ("cpu", "meta"):
            return cls(torch.device("cpu"), torch.get_rng_state())
        return cls(device, torch.get_device_module(device).get_rng_state(device))

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Return a context in which the generator is as it was; behind it, as it is now."""
        now = self._get()
        self._set(self.state)
        try:
            yield
        finally:
            self._set(now)

    def _get(self) -> torch.Tensor:
        if self.device.type == "cpu":
            return torch.get_rng_state()
        return torch.get_device_module(self.device).get_rng_state(self.device)

    def _set(self, state: torch.Tensor) -> None:
        if self.device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(self.device).set_rng_state(state, self.device)
