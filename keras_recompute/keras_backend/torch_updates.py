"""The order of weight updates on PyTorch: in the backward pass, each once its gradient is complete.

Keras's step computes all gradients and then updates all weights, so that the gradients of the whole
network are alive at once. Here a hook of PyTorch's takes each gradient when the backward pass has
added all parts of it, has the optimizer update that weight, and frees the gradient.

A weight must not change while the backward pass still reads it. It waits for the replay of every
section that read it, and as long as a tensor elsewhere shares its storage: such a tensor may have
been saved behind ``stop_gradient``. What waited to the end is updated by ``apply``.

Source: Lv et al., "Full parameter fine-tuning for large language models with limited resources"
(2023), section 3.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from ..errors import InvalidArgumentError
from ..op_names import update_scope
from ..seams.keras.layers import backend_variable
from ..seams.keras.optimizers import (
    has_undecayed,
    trained_variables,
    update_now,
    updates_in_groups,
    updates_left_out,
)
from ..seams.keras.training import has_own_train_step
from ..seams.torch.fake_tensors import running_pass
from ..seams.torch.operations import tensors_on_storage
from ..user_code import warn_user
from .torch_names import named_scope
from .update_reasons import reason_of_optimizer

# Keras's optimizers whose update of one weight reads and changes nothing of another one's. Nadam
# has a product for all, and one of the user's own may have anything.
_EACH_ALONE = frozenset(
    "SGD Adam AdamW Adamax Adagrad Adadelta RMSprop Adafactor Ftrl Lamb Lion Muon".split()
)
# Gradients of so many bytes are taken at a time: a call of an optimizer for each bias costs more.
GROUP_BYTES = 2**20
_steps: ContextVar[tuple[UpdatingStep, ...]] = ContextVar("updating steps", default=())
_trained: ContextVar[Any] = ContextVar("the model whose own step runs", default=None)


@contextlib.contextmanager
def updates_in_backward(optimizer: Any = None) -> Iterator[None]:
    """Update each weight in the backward pass, as soon as its gradient is complete.

    Put it around a whole training step: the forward pass, one backward pass, and
    ``optimizer.apply``, which is given None for the gradient of a weight that was updated: its
    ``grad`` is None. So nothing in between may change gradients, as clipping by hand would. An
    update that needs all gradients, as with ``global_clipnorm``, stays at the end. Results do not
    change. Before ``optimizer`` is built, and under ``torch.compile``, it does nothing.

    Args:
        optimizer: Keras's, by which the step trains.

    Raises:
        InvalidArgumentError: There is no ``optimizer``; the step made two backward passes, applied
            gradients of weights that were updated, or did not apply ``optimizer``.
    """
    if optimizer is None:
        raise InvalidArgumentError(
            "updates_in_backward() on PyTorch needs the optimizer, whose updates begin before it "
            "is applied: with kr.updates_in_backward(optimizer)"
        )
    around = _steps.get()
    is_inner = any(step.optimizer is optimizer for step in around)  # the outer one orders them
    if is_inner or torch.compiler.is_compiling() or not optimizer.built:
        yield
        return
    if reason_to_wait(optimizer):
        with _updates_at_the_end(optimizer):
            yield
        return
    step = UpdatingStep(optimizer)
    token = _steps.set((*around, step))
    try:
        with step.ordered():
            yield
    finally:
        _steps.reset(token)


def _updates_at_the_end(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Return the context of a step whose updates wait for all gradients.

    For each weight Keras's Adam makes three arrays of its size. An update of all weights at once
    holds them for all, and one of a few weights at a time for these.
    """
    if not _is_updated_in_groups(optimizer):
        return contextlib.nullcontext()
    return updates_in_groups(_updating(optimizer), GROUP_BYTES, _bytes_of)


def _is_updated_in_groups(optimizer: Any) -> bool:
    """Whether updates that wait are made for a few weights at a time, with the same values."""
    updating = _updating(optimizer)
    return _updates_each_alone(updating) and not _have_several_types(trained_variables(updating))


def _bytes_of(variable: Any) -> int:
    return backend_variable(variable).nbytes


def _updating(optimizer: Any) -> Any:
    """Return the optimizer that updates the weights: the one inside of loss scaling, or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def updates_of(model: Any) -> contextlib.AbstractContextManager[None]:
    """Return the context in which ``model`` runs Keras's own training step.

    A step of the user's own may do anything with gradients.
    """
    if model.jit_compile or model.optimizer is None or has_own_train_step(model):
        return contextlib.nullcontext()
    return own_step(model, model.optimizer)


@contextlib.contextmanager
def own_step(model: Any, optimizer: Any) -> Iterator[None]:
    """Return the context of a step that calls ``model``, and then begins the backward pass."""
    token = _trained.set(model)
    try:
        with updates_in_backward(optimizer):
            yield
    finally:
        _trained.reset(token)


def backward_follows(model: Any) -> bool:
    """Whether the backward pass begins right behind the call of ``model`` that runs now."""
    return _trained.get() is model


def saves_activations_alone(model: Any) -> bool:
    """Whether the step that trains ``model`` saves nothing by the order of its updates.

    False also in a step of the user's own, which may order them by ``updates_in_backward``.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not backward_follows(model) or reason_to_wait(optimizer) is None:
        return False
    return not _is_updated_in_groups(optimizer)


def reason_to_wait(optimizer: Any) -> str | None:
    """Return why updates wait for all gradients; None if each waits for its own."""
    if reason := reason_of_optimizer(optimizer):
        return reason
    if not _updates_each_alone(optimizer):
        return f"it is not known that {type(optimizer).__name__} updates each weight alone"
    if optimizer.use_ema:
        return "averages of all weights follow"
    if optimizer.loss_scale_factor is not None:
        return "loss scaling divides them"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "processes sum them first"
    if not optimizer.built:
        return None
    variables = trained_variables(optimizer)
    if _have_several_types(variables):
        return "weights have several types"
    # Keras cannot decay the weights of an empty list.
    if optimizer.weight_decay is not None and has_undecayed(optimizer, variables):
        return "some weights do not decay"
    return None


def _updates_each_alone(optimizer: Any) -> bool:
    """Whether it is known that the update of a weight neither reads nor changes another's."""
    kind = type(optimizer)
    return kind.__module__.split(".")[0] == "keras" and kind.__name__ in _EACH_ALONE


def _have_several_types(variables: Sequence[Any]) -> bool:
    """Whether types differ: Keras computes steps of all weights in the type of the first one."""
    return len({variable.dtype for variable in variables}) > 1


class ReplayedSection:
    """What a section read, and the backward pass that has replayed it.

    ``read`` and ``modules`` are filled while the section runs.
    """

    def __init__(self, read: dict[int, tuple[Any, Any]], modules: Iterable[Any]) -> None:
        self._read, self._modules = read, modules
        self._parameters: set[int] | None = None
        self._replayed_in: int | None = None

    def note_replay(self) -> None:
        """Note that the backward pass that runs has replayed the section."""
        self._replayed_in = running_pass()

    def will_read(self, parameter: torch.Tensor) -> bool:
        """Whether the backward pass that runs may still read ``parameter`` in a replay."""
        if self._replayed_in == running_pass():
            return False
        if self._parameters is None:
            found = {id(backend_variable(variable)) for variable, _ in self._read.values()}
            # Modules of PyTorch read their parameters past Keras.
            for module in self._modules:
                found.update(map(id, module.parameters(recurse=False)))
            self._parameters = found
        return id(parameter) in self._parameters


def note_section(section: ReplayedSection) -> None:
    """Have the steps under way wait for the replay of ``section``."""
    # In a backward pass it is part of another section's replay, which was noted.
    for step in _steps.get() if running_pass() is None else ():
        step.sections.append(section)


class UpdatingStep:
    """A training step in which ``optimizer`` updates weights in the backward pass.

    Attributes:
        sections: Those that the forward pass ran.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.sections: list[ReplayedSection] = []
        self._variables: dict[int, Any] = {}
        self._sharing: dict[int, int] = {}
        for variable in trained_variables(optimizer):
            parameter = backend_variable(variable)
            # A gradient that overwrites its weight is no update.
            if parameter.requires_grad and not getattr(variable, "overwrite_with_gradient", False):
                self._variables[id(parameter)] = variable
                self._sharing[id(parameter)] = tensors_on_storage(parameter)
        self._waiting: dict[int, torch.Tensor] = {}
        self._new_bytes = 0
        self._updated: set[int] = set()
        self._is_applied = False

    @contextlib.contextmanager
    def ordered(self) -> Iterator[None]:
        """Return the context of the step; raises InvalidArgumentError as updates_in_backward."""
        with contextlib.ExitStack() as hooks:
            for variable in self._variables.values():
                parameter = backend_variable(variable)
                handle = parameter.register_post_accumulate_grad_hook(self._take)
                hooks.callback(handle.remove)
            hooks.enter_context(updates_left_out(self.optimizer, self._left_out))
            try:
                yield
            except InvalidArgumentError:
                raise  # it says so itself
            except BaseException:
                if self._updated and not self._is_applied:
                    warn_user(
                        f"{len(self._updated)} of {len(self._variables)} weights were updated "
                        "before this step failed: go on from what was saved before it"
                    )
                raise
        if self._updated and not self._is_applied:
            raise InvalidArgumentError(
                f"updates_in_backward: the step ended before {self.optimizer.name!r} was applied, "
                "and weights were updated already. Call optimizer.apply(gradients, variables) "
                "inside, behind the backward pass"
            )

    def _take(self, parameter: torch.Tensor) -> None:
        """Update what can be updated now that the gradient of ``parameter`` is complete."""
        if id(parameter) in self._updated:
            raise InvalidArgumentError(
                "updates_in_backward: a second backward pass in one step adds to the gradient of "
                f"{self._variables[id(parameter)].path!r}, by which it was updated already. Add "
                "the losses and differentiate their sum, or leave updates_in_backward out"
            )
        self._waiting[id(parameter)] = parameter
        self._new_bytes += parameter.nbytes
        if self._new_bytes >= GROUP_BYTES:
            self._update_waiting()

    def _update_waiting(self) -> None:
        ready = [each for each in self._waiting.values() if not self._is_read(each)]
        # What is still read is asked for again with the next group.
        self._new_bytes = 0
        if not ready:
            return
        variables = [self._variables[id(parameter)] for parameter in ready]
        with torch.no_grad(), named_scope(update_scope()):
            update_now(self.optimizer, [parameter.grad for parameter in ready], variables)
        for parameter in ready:
            self._updated.add(id(parameter))
            del self._waiting[id(parameter)]
            # The gradient is freed here, not at the end of the step.
            parameter.grad = None

    def _is_read(self, parameter: torch.Tensor) -> bool:
        if any(section.will_read(parameter) for section in self.sections):
            return True
        return tensors_on_storage(parameter) > self._sharing[id(parameter)]

    def _left_out(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Callable[..., bool]:
        """Return what says that a variable was updated; ``apply`` was called with the arguments."""
        self._is_applied = True
        updated = {id(self._variables[key]) for key in self._updated}
        none = {id(v) for g, v in zip(gradients, variables) if g is None}
        if not updated <= none:
            raise InvalidArgumentError(
                f"updates_in_backward: {self.optimizer.name!r} was applied to other weights or "
                "gradients than the backward pass computed, and these were applied already. Apply "
                "it to all weights that it was built with, and to their grad as it is"
            )
        return lambda variable: id(variable) in updated
