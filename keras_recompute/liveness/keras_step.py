"""The training step of a Keras model as a function, and the functions that ``fit`` has traced.

Inspects the models that it is given and imports neither Keras nor TensorFlow. Seen with Keras 3.15
on TensorFlow 2.21: with ``jit_compile`` the step on one batch is a ``tf.function`` of its own, in
the closure of the model's ``train_function``. The loop around it, which draws the batches, is not
compiled by XLA.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterable, Iterator

from ..errors import InvalidArgumentError, UnsupportedError
from ..seams.keras.layers import layers_in
from ..seams.keras.training import build_for_fit, has_own_train_step
from ..seams.tensorflow.concrete_functions import is_compiled
from .abstract_models import as_abstract_as

DATA_NAMES = ("x", "y", "sample_weight")
_DEEPEST = 12  # closures in closures; Keras has four


def is_model(value: Any) -> bool:
    """Return whether ``value`` is a model that Keras can train."""
    return callable(getattr(value, "train_step", None)) and callable(
        getattr(value, "make_train_function", None)
    )


def layer_names(model: Any) -> tuple[str, ...]:
    """Return the names of all layers of a model, nested ones included, and ``compile_loss``.

    Names of models are among them where the paths of variables begin with them: not that of a
    functional model, but that of a Sequential whose layers a checkpointed model took over.
    """
    names = {layer.name for layer in layers_in(model, include_self=False)} | {"compile_loss"}
    for variable in model.variables:
        first, *rest = variable.path.split("/")
        if first == model.name or (rest and rest[0] in names):
            names.add(first)
    return tuple(sorted(names))


def training_step(model: Any, data: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the training step of a compiled model as a function of a batch.

    It takes as many of them as ``data`` has. It is the ``train_step`` that ``fit`` would run, the
    class's own if it has one, on what ``fit`` passes to it. Missing variables of layers, metrics
    and optimizers are created as in ``fit``, when it is traced if not before. Nothing is trained.
    Raises InvalidArgumentError for a model that was not compiled, and for too little or too much
    data.
    """
    check_compiled(model, data)
    if not has_own_train_step(model):
        # A model whose call cannot be run on shapes alone is built by its step instead.
        with contextlib.suppress(RuntimeError, ValueError):
            build_model(model, data)
    # With several replicas Keras's step is not compiled as a whole.
    compiled = getattr(model, "compiled_step", model.train_step)
    steps: dict[int, Callable[..., Any]] = {
        1: lambda x: compiled(as_fit_passes((x,))),
        2: lambda x, y: compiled((x, y)),
        3: lambda x, y, sample_weight: compiled((x, y, sample_weight)),
    }
    step = steps[len(data)]
    step.__name__ = "training_step"  # the program is called after it
    return step


def as_fit_passes(data: tuple[Any, ...]) -> Any:
    """Return a batch as ``fit`` passes it to a ``train_step``.

    Inputs alone stay in a tuple only where they could be mistaken for inputs and targets.
    """
    x, *others = data
    return data if others or isinstance(x, (list, tuple)) else x


def run_train_step(model: Any, *arguments: Any) -> Any:
    """Return ``model.train_step`` of ``arguments``. The last is a batch; before it JAX's state."""
    *state, data = arguments
    return model.train_step(*state, as_fit_passes(data))


def check_compiled(model: Any, data: tuple[Any, ...]) -> None:
    """Raise InvalidArgumentError unless ``fit`` could train ``model`` on a batch like ``data``."""
    is_own = has_own_train_step(model)
    has_optimizer = getattr(model, "optimizer", None) is not None
    if not getattr(model, "compiled", False) or not (has_optimizer or is_own):
        how = "compile(...), as its class takes it," if is_own else "compile(optimizer, loss)"
        raise InvalidArgumentError(
            f"the model {model.name!r} is not compiled with an optimizer, so fit would run no "
            f"training step: call model.{how} first"
        )
    if not 1 <= len(data) <= len(DATA_NAMES):
        raise InvalidArgumentError(
            f"profile(model, x, y) takes a batch as fit does, {', '.join(DATA_NAMES)}, not "
            f"{len(data)} values"
        )
    if not is_own and getattr(model, "loss", None) and len(data) == 1:
        raise InvalidArgumentError(
            f"{model.name!r} is compiled with a loss, which compares its outputs with targets: "
            "give them too, as in profile(model, x, y)"
        )


def built_optimizer(model: Any) -> Any:
    """Return the optimizer of a compiled model, with its variables.

    Raises UnsupportedError for a model that trains by optimizers of its own.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise UnsupportedError(
            f"{model.name!r} trains by optimizers of its own, and records on this backend "
            "know model.optimizer alone: give compile(...) one, or profile the step as a function"
        )
    build_optimizer(optimizer, model)  # a train_step of the class's own may leave it to fit
    return optimizer


def build_model(model: Any, data: tuple[Any, ...]) -> None:
    """Create all variables of a compiled ``model`` for a batch, abstract ones for such a model."""
    with as_abstract_as(model):
        build_for_fit(model, data)


def build_optimizer(optimizer: Any, model: Any) -> None:
    """Create the variables of ``optimizer`` unless it has them, abstract ones for such a model."""
    if not optimizer.built:
        with as_abstract_as(model):
            optimizer.build(model.trainable_variables)


def compiled_functions(train_function: Any) -> Iterator[Any]:
    """Yield each function compiled by XLA that ``train_function`` reaches through its closures."""
    pending, seen = [(train_function, 0)], set()
    while pending:
        function, depth = pending.pop(0)
        # Closures may lead in circles.
        if id(function) in seen or depth > _DEEPEST:
            continue
        seen.add(id(function))
        # A functools wrapper copies the attributes of a function, but not its methods.
        if is_compiled(function) and hasattr(function, "experimental_get_compiler_ir"):
            yield function
            continue
        inner = getattr(function, "python_function", function)
        contents = [getattr(inner, "__wrapped__", None), getattr(inner, "__func__", None)]
        for cell in getattr(inner, "__closure__", None) or ():
            try:
                contents.append(cell.cell_contents)
            except ValueError:  # a cell that is empty yet
                continue
        pending += [
            (c, depth + 1)
            for c in contents
            if callable(c) and not is_model(c) and not isinstance(c, type)
        ]


def complete_shapes(shapes: Iterable[Any], batch_size: int | None) -> list[list[int]] | None:
    """Return ``shapes`` with unknown batch dimensions set to ``batch_size``.

    None if another dimension is unknown. ``fit`` traces a step for batches of any size if the last
    one is shorter. XLA then compiles it for each size.
    """
    whole: list[list[int]] = []
    for shape in shapes:
        sizes: list[Any] = shape.as_list() if shape.rank is not None else [None]
        if sizes and sizes[0] is None:
            sizes[0] = batch_size
        if None in sizes:
            return None
        whole.append(sizes)
    return whole
