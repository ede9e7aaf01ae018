"""The answer to whether a model trains on a device, found by that device's compiler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import keras

from ..errors import DoesNotFitError, InvalidArgumentError
from ..liveness import Device, Program
from ..models.measures.backend_measures import trained_step
from ..models.plans.checkpointed import functional_model
from ..models.plans.memory_plan import plan
from ..models.plans.plan_candidates import MemoryPlan
from ..planning import BudgetTooSmallError
from .largest import Largest, largest_that_fits
from .several_devices import batch_parts

LENGTH_STEP = 128  # of tokens: what the tiles of GPUs and TPUs are multiples of


@dataclass(frozen=True)
class Size:
    """A batch, and the length of its sequences where the model leaves it open.

    ``lengths`` are those of single inputs, by name, where they differ.
    """

    batch: int
    length: int | None
    lengths: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Answer:
    """Whether a step fits, and what it needs.

    Attributes:
        size: What was asked.
        budget_bytes: The memory of the device that may be used.
        plain: The step of the plain model; None if the compiler refused it for lack of memory.
        plain_bytes: What a run of it needs.
        plan: The cheapest plan that fits; where none does, the leanest.
        planned: The step with its checkpoints; None as above.
        planned_bytes: What a run of it needs.
    """

    size: Size
    budget_bytes: int
    plain: Program | None
    plain_bytes: int
    plan: MemoryPlan
    planned: Program | None
    planned_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the step fits, with checkpoints or without."""
        return self.planned_bytes <= self.budget_bytes


class Question:
    """Whether steps of a compiled ``model`` fit into ``budget_bytes`` of a ``device``.

    ``device`` has the memory of each of several where ``keras.distribution`` divides the model.
    Raises InvalidArgumentError for a model that is no graph of layers, or a size that stays
    unknown, and DeviceError where the compiler refuses a program for another reason than memory.
    """

    def __init__(
        self, model: keras.Model, size: Size, *, device: Device, budget_bytes: int
    ) -> None:
        self._model, self._size, self._device = model, size, device
        self._budget_bytes = budget_bytes
        parts = batch_parts()
        if size.batch % parts:
            raise InvalidArgumentError(
                f"a batch of {size.batch} cannot be divided among {parts} devices: give a multiple"
            )
        self._options: dict[str, Any] = {"sample": sample_of(model, size), "device": device.name}

    @cached_property
    def _leanest(self) -> tuple[keras.Model, MemoryPlan]:
        return plan(self._model, memory_budget="smallest", **self._options)

    @cached_property
    def _leanest_step(self) -> tuple[Program | None, int]:
        return self._compiled(self._leanest[0], self._size)

    def answer(self) -> Answer:
        """Compile plans until the cheapest is known that fits, or that none does."""
        try:
            candidate, found = plan(self._model, memory_budget=self._budget_bytes, **self._options)
        except BudgetTooSmallError:
            candidate, found = self._leanest
        plain, plain_bytes = self._compiled(self._model, self._size)
        planned, planned_bytes = plain, plain_bytes
        if found.checkpoints or found.layers:
            planned, planned_bytes = self._compiled(candidate, self._size)
        budget_bytes = self._budget_bytes
        return Answer(self._size, budget_bytes, plain, plain_bytes, found, planned, planned_bytes)

    def largest_batch(self) -> Largest:
        """Return the largest batch of the same length that fits with the leanest checkpoints.

        It is a multiple of the number of parts into which a distribution divides it.
        """
        return largest_that_fits(
            lambda batch: self._needed_bytes(replace(self._size, batch=batch)),
            known=self._known(self._size.batch),
            budget_bytes=self._budget_bytes,
            step=batch_parts(),
        )

    def largest_length(self) -> Largest | None:
        """Return the largest length of the same batch that fits; None where none was asked."""
        if self._size.length is None:
            return None
        return largest_that_fits(
            lambda length: self._needed_bytes(replace(self._size, length=length)),
            known=self._known(self._size.length),
            budget_bytes=self._budget_bytes,
            step=LENGTH_STEP,
        )

    def _known(self, asked: int) -> dict[int, int]:
        """Return the bytes for the size that was asked, and for 0: weights and optimizer alone."""
        program, bytes_needed = self._leanest_step
        always = {} if program is None else {0: program.always_live_bytes}
        return {**always, asked: bytes_needed}

    def _needed_bytes(self, size: Size) -> int:
        return self._compiled(self._leanest[0], size)[1]

    def _compiled(self, candidate: keras.Model, size: Size) -> tuple[Program | None, int]:
        """Return the record of a step of ``candidate``, and the bytes that a run needs.

        There is no record where the compiler says that it does not fit.
        """
        x, *targets = sample_of(self._model, size)
        step = trained_step(self._model, x, tuple(targets))
        try:
            program = step.compiled(candidate, device=self._device.name)
        except DoesNotFitError as error:
            return None, error.needed_bytes
        return program, program.run_bytes


def sample_of(model: keras.Model, size: Size) -> tuple[Any, ...]:
    """Return types and shapes of a batch of that size, with targets if ``model`` has a loss.

    Raises InvalidArgumentError for a length that stays unknown, or is of no input.
    """
    functional = functional_model(model)
    names = [tensor.name for tensor in functional.inputs]
    # A name that fits no input would be ignored, and the answer be another one.
    for name, length in size.lengths:
        if name not in names:
            raise InvalidArgumentError(
                f"--length {name}={length}: the model has no input {name!r}, but {', '.join(names)}"
            )
    x = keras.tree.map_structure(lambda each: _sized(each, size), functional.input)
    if model.loss is None:
        return (x,)
    output = functional.outputs[0]
    is_sparse = "sparse" in _name_of(model.loss).lower()
    shape, dtype = (output.shape[:-1], "int32") if is_sparse else (output.shape, output.dtype)
    return x, _sized(keras.KerasTensor(shape, dtype), size)


def _sized(tensor: Any, size: Size) -> keras.KerasTensor:
    """Return the type and shape of ``tensor`` with the batch and length of ``size``."""
    first, *rest = tensor.shape
    length = dict(size.lengths).get(tensor.name, size.length)
    if None in rest and length is None:
        raise InvalidArgumentError(
            f"the model takes {tuple(tensor.shape)}, and its sequences have no length of their "
            "own: give --length"
        )
    filled = [length if each is None else each for each in rest]
    return keras.KerasTensor((size.batch if first is None else first, *filled), tensor.dtype)


def _name_of(loss: Any) -> str:
    return loss if isinstance(loss, str) else getattr(loss, "name", type(loss).__name__)
