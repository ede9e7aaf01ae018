"""Keras models with Graphcore's methods, one class per way to define a model.

There are functional and sequential models, and models with a class of their own.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ...errors import UnsupportedError
from ...models.classes.model import Model
from ...models.execution.executor import ExecutionPlan
from ...seams.keras.construction import construct_plain_functional, derive_from_functional
from ...seams.keras.graph import Functional, functional_of_sequential
from ...seams.keras.layers import layers_in, takes_training
from ..configuration import config
from ..configuration.current_strategy import enter_strategy
from ..pipeline.assignment import (
    OF_FUNCTIONAL,
    OF_SEQUENTIAL,
    OF_SUBCLASS,
    StagedCall,
    entries_of,
    print_summary,
    staged_calls,
    staged_layers,
    stages_of_entries,
    stages_of_sequence,
)
from ..pipeline.model_stages import Task
from ..pipeline.staged_graph import check_stages, staged_graph
from ..pipeline.stages import PipelineStage, Stages, assigned_stage
from .ipu_model_mixin import IpuModelMixin

_BUILT_FIRST = (
    "is not built, so the calls of its layers are not known: call it on data, build it, or fit "
    "it first"
)


class _StageAssignment(IpuModelMixin):
    """The stage assignment methods of models whose layer calls are known."""

    _kind = OF_FUNCTIONAL

    def get_pipeline_stage_assignment(self) -> list[Any]:
        """Return an entry for each layer call, in running order, with its ``pipeline_stage``.

        The stage may be None. The entry of a model made in the scope has a list of such entries
        instead.
        """
        return self.pipeline_stage_entries()

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: Any) -> None:
        """Assign calls to stages, by entries as ``get_pipeline_stage_assignment`` returns them.

        They apply to this model alone: models inside it keep their own stages. Raises ValueError
        for entries that do not match this model's calls, or have no stage.
        """
        self._assign(self.stages_of_entries(pipeline_stage_assignment))

    def reset_pipeline_stage_assignment(self) -> None:
        """Remove all calls of this model from their stages."""
        self._assign((None,) * len(self._places()))

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Any = None
    ) -> None:
        """Print the calls and their stages, with ``print_fn`` if it is given."""
        print_summary(self.get_pipeline_stage_assignment(), line_length, print_fn)

    def pipeline_stage_entries(self, stages: Stages = None) -> list[Any]:
        """Return an entry for each call, with ``stages`` or, if None, the model's own stages.

        An addition to Graphcore's API.
        """
        places, stages = self._places(), self.assigned_stages if stages is None else stages
        return entries_of(
            places, stages if stages is None or len(stages) == len(places) else None, self._kind
        )

    def stages_of_entries(self, entries: Any) -> tuple[Any, ...]:
        """Return the stages of ``entries``; raise ValueError if they do not match the model.

        An addition to Graphcore's API.
        """
        return stages_of_entries(self._places(), entries, self._kind)

    def _places(self) -> list[StagedCall]:
        """Return the model's calls in running order."""
        return staged_calls(self._functional_of_calls())

    def _assign(self, stages: tuple[Any, ...]) -> None:
        # Keras's own __setattr__ would wrap the tuple.
        """Store the stages of all calls and discard the programs."""
        object.__setattr__(self, "assigned_stages", stages)
        self._forget_programs()

    def _functional_of_calls(self) -> keras.Model:
        """Return the functional model whose calls are listed."""
        functional = self.functional_of(Task.TRAIN)
        if functional is None:
            raise UnsupportedError(
                f"the call of {type(self).__name__!r} cannot run on symbolic tensors, so its "
                "calls of layers are not known: use layers and keras.ops in it, not tf"
            )
        return functional


@keras.saving.register_keras_serializable(package="keras_recompute")
class PipelinedModel(_StageAssignment, Model):
    """A functional model made in an IPUStrategy's scope.

    It is a pipeline if calls are in ``PipelineStage`` contexts, or were assigned to stages by
    ``set_pipeline_stage_assignment``. Otherwise it trains like a ``keras_recompute.Model``, and
    ``allow_recompute`` decides whether it recomputes. Source: Graphcore, pipelined training.
    """

    def functional_of(self, task: Task) -> keras.Model:
        """Return the model itself."""
        del task
        return self

    def _make_plan(self) -> ExecutionPlan:
        graph = staged_graph(self, self.assigned_stages)
        check_stages(graph)
        self._forget_programs()
        if not config.current().allow_recompute or any(
            call.stage is not None for call in graph.calls
        ):
            return ExecutionPlan.without_recomputation(graph)
        return super()._make_plan()


@keras.saving.register_keras_serializable(package="keras_recompute")
class PipelinedSequential(_StageAssignment, keras.Sequential):
    """A sequential model made in an IPUStrategy's scope."""

    _kind = OF_SEQUENTIAL

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._forget_programs()
        super().__init__(*args, **kwargs)

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: Any) -> None:
        """Assign each layer to the stage at its index: numbers, or entries as for any model.

        Numbers start at 0 and rise by at most one. The number of a nested model applies to all its
        calls.
        """
        self._assign(stages_of_sequence(self._places(), pipeline_stage_assignment, self._kind))

    def _places(self) -> list[StagedCall]:
        return staged_layers(self.layers)

    def functional_of(self, task: Task) -> keras.Model:
        """Return the functional model of the layers; raise ValueError before the model is built."""
        del task
        if functional_of_sequential(self) is None and self._batch_spec is not None:
            self.build(tf.nest.flatten(self._batch_spec)[0].shape.as_list())
        functional: keras.Model | None = functional_of_sequential(self)
        if functional is None:
            raise ValueError(f"the sequential model {self.name!r} {_BUILT_FIRST}")
        return functional


class PipelinedSubclass(_StageAssignment):
    """A model with its own ``call``, made in an IPUStrategy's scope.

    ``call`` runs once on symbolic inputs, for each shape of the data, to record which layers it
    calls in which order and stages. So it must use ``keras.ops``, not ``tf``.
    """

    _kind = OF_SUBCLASS
    _call_is_given = True
    _functionals: dict[Any, keras.Model | None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._forget_programs()
        super().__init__(*args, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Build as Keras does, and record the layer calls.

        ``input_shape`` is a shape, or a list or dict of shapes.
        """
        super().build(input_shape)
        if input_shape is not None and self._batch_spec is None:
            self._batch_spec = _specs(input_shape)

    def functional_of(self, task: Task) -> keras.Model | None:
        """Return ``call`` as a functional model; raise ValueError before the data's shape is known.

        None if ``call`` cannot run symbolically and uses no stages. If it uses stages,
        UnsupportedError is raised.
        """
        if self._batch_spec is None:
            raise ValueError(f"the model {self.name!r} {_BUILT_FIRST}")
        is_training = task is Task.TRAIN
        return self._symbolic_call(self._batch_spec, is_training)

    def functional_like(self, inputs: Any, is_training: bool) -> keras.Model | None:
        """Return ``call`` as a functional model for the symbolic ``inputs`` of an outer model.

        None as for ``functional_of``.
        """
        return self._symbolic_call(keras.tree.map_structure(_spec_of, inputs), is_training)

    def _symbolic_call(self, specs: Any, is_training: bool) -> keras.Model | None:
        """Return ``call`` as a functional model for inputs like ``specs``, traced once for each."""
        key = (repr(specs), is_training)
        if key not in self._functionals:
            self._functionals[key] = self._traced(specs, is_training)
        return self._functionals[key]

    def _traced(self, specs: Any, is_training: bool) -> keras.Model | None:
        """Run ``call`` on symbolic inputs like ``specs``."""

        def made(spec: Any, name: Any = None) -> Any:
            return keras.Input(batch_shape=tuple(spec.shape), dtype=spec.dtype.name, name=name)

        named = isinstance(specs, dict) and all(
            isinstance(spec, tf.TensorSpec) for spec in specs.values()
        )
        # Keras requires that inputs in a dictionary have its keys as names.
        inputs = (
            {k: made(spec, k) for k, spec in specs.items()}
            if named
            else keras.tree.map_structure(made, specs)
        )
        given = {"training": is_training} if takes_training(self) else {}
        before = PipelineStage.times_entered
        try:
            with enter_strategy(self._made_in), construct_plain_functional():
                return Functional(inputs, self.call(inputs, **given))
        except Exception as error:
            layers = layers_in(self, include_self=False)
            if PipelineStage.times_entered == before and all(
                assigned_stage(layer) is None for layer in layers
            ):
                # Without stages it need not be a pipeline, and TensorFlow traces the call itself.
                return None
            raise UnsupportedError(
                f"the call of {type(self).__name__!r} has pipeline stages, but cannot run on "
                f"symbolic tensors: {error}. Use layers and keras.ops in it, not tf"
            ) from error

    def _forget_programs(self) -> None:
        super()._forget_programs()
        # Keras must not track these: they only hold the model's own layers.
        object.__setattr__(self, "_functionals", {})


def _spec_of(tensor: Any) -> Any:
    """Return the spec of ``tensor``."""
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _specs(shapes: Any) -> Any:
    """Return the nest of specs for a nest of shapes."""
    if isinstance(shapes, dict):
        return {name: _specs(shape) for name, shape in shapes.items()}
    if isinstance(shapes, tf.TensorShape) or all(d is None or isinstance(d, int) for d in shapes):
        return tf.TensorSpec(shapes, tf.float32)
    return list(map(_specs, shapes))


_extended: dict[tuple[type, bool], type] = {}


def ipu_class_of(cls: type, *, is_functional: bool) -> type:
    """Return the class that a model of class ``cls`` gets in an IPUStrategy's scope.

    Its name is that of the model's class outside the scope. So a model saved inside can be loaded
    outside, and inside becomes a model of the scope again.
    """
    base: type = PipelinedModel if is_functional else PipelinedSubclass
    if issubclass(cls, keras.Sequential):
        base = PipelinedSequential
    if cls is keras.Model:
        cls = Functional
    if base is PipelinedModel:
        # As Keras does when the first one is made, which is too late: an object of Functional's
        # class is constructed only if it is one, and of a class of its own Functional would stand
        # before it, so that what it overrides would not count.
        derive_from_functional(base)
        derive_from_functional(cls)
    if (cls, is_functional) not in _extended:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        bases = (base,) if cls in (Functional, keras.Sequential) else (base, cls)
        _extended[cls, is_functional] = type(cls.__name__, bases, names)
    return _extended[cls, is_functional]
