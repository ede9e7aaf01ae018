"""What Graphcore's API refuses is refused here, by the same type of error and in time.

Sources: Graphcore, Keras models and fit.
"""

from __future__ import annotations

from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

from .pipelines import BATCH, configure, data, pipelined

pytestmark = pytest.mark.usefixtures("graphcore_names")


def schedules():
    from tensorflow.python.ipu.pipelining_ops import PipelineSchedule, RecomputationMode

    return PipelineSchedule, RecomputationMode


def test_a_stage_outside_a_strategy():
    with pytest.raises(RuntimeError, match=r"PipelineStage\(1\) is used outside a strategy"):
        tf.keras.ipu.PipelineStage(1).__enter__()


@pytest.mark.usefixtures("scope")
class TestStages:
    @pytest.mark.parametrize("stage", [-1, 1.0, "0", None, True])
    def test_a_stage_is_a_whole_number_from_zero_on(self, stage):
        with pytest.raises(ValueError, match=f"from 0 on, not {stage!r}"):
            tf.keras.ipu.PipelineStage(stage)

    def test_nested(self):
        inside = pytest.raises(
            RuntimeError, match=r"PipelineStage\(1\) is used inside PipelineStage\(0\)"
        )
        with tf.keras.ipu.PipelineStage(0), inside:
            tf.keras.ipu.PipelineStage(1).__enter__()
        with tf.keras.ipu.PipelineStage(1):
            pass  # and after it another may be entered

    def test_an_error_inside_a_stage_leaves_it(self):
        with pytest.raises(KeyError), tf.keras.ipu.PipelineStage(0):
            raise KeyError
        with tf.keras.ipu.PipelineStage(1):
            pass

    def test_a_call_without_a_stage(self):
        inputs = keras.Input((3,))
        with tf.keras.ipu.PipelineStage(0):
            x = keras.layers.Dense(2)(inputs)
        with pytest.raises(ValueError, match="the call of layer 'outside' is in no PipelineStage"):
            keras.Model(inputs, keras.layers.Dense(1, name="outside")(x))

    def test_a_call_that_reads_a_later_stage(self):
        inputs = keras.Input((3,))
        with tf.keras.ipu.PipelineStage(1):
            x = keras.layers.Dense(2)(inputs)
        with tf.keras.ipu.PipelineStage(0):
            x = keras.layers.Dense(1, name="early")(x)
        with pytest.raises(
            ValueError, match="layer 'early' in stage 0 reads an output of a later stage"
        ):
            keras.Model(inputs, x)

    @pytest.mark.parametrize(
        ("stages", "error"), [((0, 2), RuntimeError), ((1, 2), RuntimeError), ((0, 0), ValueError)]
    )
    def test_a_gap_and_a_single_stage_are_found_when_the_pipeline_is_built(self, stages, error):
        inputs = x = keras.Input((3,), batch_size=1)
        for stage in stages:
            with tf.keras.ipu.PipelineStage(stage):
                x = keras.layers.Dense(1)(x)
        model = keras.Model(inputs, x)
        model.compile("sgd", "mse")
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=1)
        with pytest.raises(error, match="gap" if error is RuntimeError else "at least two stages"):
            model.fit(np.ones((1, 3)), np.ones((1, 1)), batch_size=1, verbose=0)


@pytest.fixture(scope="module")
def model():
    """A pipelined model for setters, which is not trained."""
    return pipelined()


class TestOptions:
    @pytest.mark.parametrize("steps", [0, -1, 1.5, "4", True])
    def test_accumulation_steps(self, model, steps):
        with pytest.raises(ValueError, match=f"must be a positive whole number, not {steps!r}"):
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=steps)
        with pytest.raises(ValueError, match="must be a positive whole number"):
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)

    @pytest.mark.parametrize("mapping", [0, (0, 0), [0, "1"], [0.0, 0.0], "00"])
    def test_device_mapping(self, model, mapping):
        with pytest.raises(ValueError, match="device_mapping must be a list of int"):
            model.set_pipelining_options(device_mapping=mapping)

    @pytest.mark.parametrize(
        "name",
        [
            "computational_stages",
            "repeat_count",
            "inputs",
            "infeed_queue",
            "outfeed_queue",
            "optimizer_function",
        ],
    )
    def test_what_keras_sets_itself(self, model, name):
        with pytest.raises(ValueError, match=f"'{name}' is set by Keras"):
            model.set_pipelining_options(**{name: 1})

    def test_what_has_an_argument_of_its_own(self, model):
        with pytest.raises(ValueError, match="use gradient_accumulation_steps_per_replica="):
            model.set_pipelining_options(gradient_accumulation_count=2)

    @pytest.mark.parametrize("method", ["product", 3, None])
    def test_reduction_method(self, model, method):
        with pytest.raises(ValueError, match="must be SUM, MEAN or RUNNING_MEAN"):
            model.set_pipelining_options(gradient_accumulation_reduction_method=method)

    @pytest.mark.parametrize("method", ["SUM", "sum", "Mean", "RUNNING_mean"])
    def test_reduction_methods_in_any_case_and_as_members(self, model, method):
        from tensorflow.python.ipu.gradient_accumulation import (
            GradientAccumulationReductionMethod as Method,
        )

        for given in (method, Method[method.upper()]):
            for set_options in (
                model.set_pipelining_options,
                model.set_gradient_accumulation_options,
            ):
                set_options(2, gradient_accumulation_reduction_method=given)
            assert (
                model._pipelining.reduction
                is model._accumulation.reduction
                is Method[method.upper()]
            )
        model.set_pipelining_options(2)
        assert model._pipelining.reduction is Method.SUM, "the default"

    @pytest.mark.parametrize(
        "options",
        [
            {"offload_weight_update_variables": True},
            {"offload_activations": True},
            {"gradient_accumulation_dtype": tf.float32},
        ],
        ids=str,
    )
    def test_what_is_not_emulated_says_so(self, model, options):
        with pytest.raises(NotImplementedError, match="is not emulated on stock TensorFlow"):
            model.set_pipelining_options(**options)

    def test_an_unknown_option(self, model):
        with pytest.raises(TypeError, match="does not know 'pipeline_shedule'"):
            model.set_pipelining_options(pipeline_shedule=1)

    def test_options_without_effect_are_accepted(self, model):
        for direction in ("forward", "backward"):
            model.set_pipelining_options(
                2, **{f"{direction}_propagation_stages_poplar_options": [{}]}
            )
        model.set_pipelining_options(2, accumulate_outfeed=True)
        model.set_infeed_queue_options(prefetch_depth=2)
        model.set_outfeed_queue_options(buffer_depth=2)
        model.set_replication_options("MEAN")
        model.set_replication_options(tf.keras.ipu.ReplicatedMetricReductionMethod.NONE)
        model.set_asynchronous_callbacks(False)
        model.set_asynchronous_callbacks(asynchronous=True)

    def test_depths_methods_and_callbacks_that_cannot_be(self, model):
        with pytest.raises(
            ValueError, match="prefetch_depth must be a positive whole number, not 0"
        ):
            model.set_infeed_queue_options(prefetch_depth=0)
        with pytest.raises(
            ValueError, match="buffer_depth must be a positive whole number, not 'a'"
        ):
            model.set_outfeed_queue_options(buffer_depth="a")
        with pytest.raises(ValueError, match="must be one of NONE, LIST, SUM, MEAN, not 'product'"):
            model.set_replication_options("product")

    def test_accumulation_options(self, model):
        with pytest.raises(
            TypeError, match="set_gradient_accumulation_options does not know 'steps'"
        ):
            model.set_gradient_accumulation_options(2, steps=2)
        with pytest.raises(NotImplementedError, match="offload_weight_update_variables"):
            model.set_gradient_accumulation_options(2, offload_weight_update_variables=True)
        with pytest.raises(ValueError, match="must be SUM, MEAN or RUNNING_MEAN"):
            model.set_gradient_accumulation_options(
                2, gradient_accumulation_reduction_method="product"
            )


class TestBuilding:
    """Checked when the pipeline is built, not by the setter."""

    def fit(self, **options):
        Schedule, Mode = schedules()
        options = {
            "pipeline_schedule": Schedule.Sequential,
            "recomputation_mode": Mode.Auto,
            **options,
        }
        steps = options.pop("steps", 2)
        model = pipelined(steps=steps or 2)
        model.set_pipelining_options(steps, **options)
        model.fit(*data(steps or 2), batch_size=BATCH, verbose=0)

    def test_a_sound_pipeline(self):
        self.fit()

    def test_schedule_and_mode_are_enumerations(self):
        with pytest.raises(
            TypeError, match="pipeline_schedule must be a PipelineSchedule, not 'Sequential'"
        ):
            self.fit(pipeline_schedule="Sequential")
        with pytest.raises(
            TypeError, match="recomputation_mode must be a RecomputationMode, not 2"
        ):
            self.fit(recomputation_mode=2)

    def test_device_mapping_as_long_as_the_stages(self):
        with pytest.raises(ValueError, match="device_mapping has 3 entries for 2 stages"):
            self.fit(device_mapping=[0, 0, 0])

    def test_interleaved_training_needs_a_device_per_stage(self):
        with pytest.raises(
            NotImplementedError, match=r"device_mapping=\[0, 0\], which uses a device twice"
        ):
            self.fit(pipeline_schedule=schedules()[0].Interleaved, device_mapping=[0, 0])

    @pytest.mark.parametrize(
        ("schedule", "mode", "use"),
        [
            ("Sequential", "RecomputeThenBackpropagate", "RecomputeAndBackpropagateInterleaved"),
            ("Interleaved", "RecomputeAndBackpropagateInterleaved", "RecomputeThenBackpropagate"),
        ],
    )
    @pytest.mark.parametrize("recompute", [True, False])
    def test_a_mode_that_the_schedule_cannot_do(self, schedule, mode, use, recompute):
        configure(recompute=recompute)
        Schedule, Mode = schedules()
        with pytest.raises(
            tf.errors.UnimplementedError, match=f"{schedule} .* combined with {mode}: use {use}"
        ):
            self.fit(pipeline_schedule=Schedule[schedule], recomputation_mode=Mode[mode])

    @pytest.mark.parametrize(
        ("schedule", "steps", "multiple"),
        [("Grouped", 2, 4), ("Grouped", 6, 4), ("Interleaved", 3, 2)],
    )
    def test_the_number_of_microbatches(self, schedule, steps, multiple):
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match=f"{steps} microbatches do not fill .* needs a multiple of {multiple}",
        ):
            self.fit(pipeline_schedule=schedules()[0][schedule], steps=steps)

    def test_the_number_of_microbatches_of_inference(self):
        model = pipelined(steps=3, accumulation=3)
        model.set_pipelining_options(3, pipeline_schedule=schedules()[0].Grouped)
        for run in (
            lambda: model.evaluate(*data(3), batch_size=BATCH),
            lambda: model.predict(data(3)[0], batch_size=BATCH),
        ):
            with pytest.raises(
                tf.errors.FailedPreconditionError,
                match=r"^3 microbatches .* Change the steps per execution",
            ):
                run()

    @pytest.mark.usefixtures("scope")
    def test_inputs_are_in_stage_0_wherever_they_are_made(self):
        """In no stage, or in a later one than the layer that reads them."""
        for number in (None, 1):
            made = nullcontext() if number is None else tf.keras.ipu.PipelineStage(number)
            with made:
                inputs = keras.Input((3,), batch_size=1)
            x = inputs
            for stage in (0, 1):
                with tf.keras.ipu.PipelineStage(stage):
                    x = keras.layers.Dense(1)(x)
            assert keras.Model(inputs, x).pipeline_stages == (0, 1)

    @pytest.mark.long
    @pytest.mark.usefixtures("scope")
    def test_options_may_be_set_before_compiling(self):
        inputs = x = keras.Input((3,), batch_size=1)
        for stage in (0, 1):
            with tf.keras.ipu.PipelineStage(stage):
                x = keras.layers.Dense(1)(x)
        model = keras.Model(inputs, x)
        model.set_pipelining_options(2, pipeline_schedule=schedules()[0].Sequential)
        model.compile("sgd", "mse", steps_per_execution=4)
        model.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=1, verbose=0)
        assert len(model.training_record.losses) == 2

    def test_accumulation_is_needed(self):
        with pytest.raises(ValueError, match="needs gradient accumulation"):
            self.fit(steps=None)

    def test_the_accumulation_of_models_that_are_no_pipelines_is_not_taken_for_a_pipeline_s(self):
        model = pipelined()
        model.set_gradient_accumulation_options(2)
        with pytest.raises(
            ValueError,
            match="set_gradient_accumulation_options is for models without a pipeline",
        ):
            model.fit(*data(2), batch_size=BATCH, verbose=0)
