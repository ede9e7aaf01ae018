"""Train a long recurrent network with recomputation checkpoints, and show the memory that it takes.

The sequence is split into equal sections, separated by RecomputationCheckpoint layers, in a
pipelined Keras model with the mode RecomputeAndBackpropagateInterleaved. Only the states between
sections are kept for the backward pass; within a section everything is recomputed. The number of
checkpoints changes the memory, never what is computed.

    python3 recompute_lstm.py --checkpoints 7                    a byte-level language model, here
    python3 recompute_lstm.py --checkpoints 0 --report plain     without checkpoints, with a report
    python3 recompute_lstm.py --checkpoints auto --memory-budget 128MiB   the fastest plan that fits
    python3 recompute_lstm.py --sweep --report sweep             several plans side by side
    python3 recompute_lstm.py --data constant --target ipu       the published example, on an IPU

Runs on stock TensorFlow (target xla), and beside the Poplar SDK on an IPU (ipu) or its simulator
(ipu-model).
"""

from lstm_example.data import SYMBOLS
from lstm_example.run import exit_process, run
from lstm_example.sequence_plans import sections_of


def build_model(tf, options, checkpoints):
    """Return the compiled pipelined model, the same for every target.

    Called in the scope of an IPUStrategy.
    """
    import ipu_tensorflow_addons.keras.layers as ipu_layers
    from tensorflow.python import ipu

    from keras_recompute import TimeSlice

    keras = tf.keras
    if options.is_text:
        inputs = keras.layers.Input(
            (options.seq_len,), batch_size=options.batch_size, dtype="int32"
        )
        embedding = keras.layers.Embedding(
            SYMBOLS, options.features, keras.initializers.RandomNormal(stddev=1.0)
        )
    else:
        inputs = keras.layers.Input(
            (options.seq_len, options.features), batch_size=options.batch_size
        )
    cell = {"lstm": ipu_layers.PopnnLSTM, "gru": ipu_layers.PopnnGRU}[options.cell]

    # A pipeline is needed even if there is only one device.
    with keras.ipu.PipelineStage(0):
        recurrent = cell(options.units, return_sequences=True, return_state=True)
        state, outputs = None, []
        sections = sections_of(options.seq_len, checkpoints)
        for number, (begin, end) in enumerate(sections):
            x = TimeSlice(begin, end)(inputs)
            x = embedding(x) if options.is_text else x
            output, *state = recurrent(x, initial_state=state)
            outputs.append(output)
            # The last state is not needed again, so it needs no checkpoint.
            if number + 1 < len(sections):
                state = ipu_layers.RecomputationCheckpoint()(state)
        x = keras.layers.Concatenate(axis=1)(outputs) if len(outputs) > 1 else outputs[0]
    with keras.ipu.PipelineStage(1):
        x = keras.layers.Dense(SYMBOLS if options.is_text else 1)(x)

    model = keras.Model(inputs, x)
    optimizer = keras.optimizers.Adam if options.is_text else keras.optimizers.SGD
    model.compile(
        optimizer(options.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if options.is_text
        else "mse",
        steps_per_execution=options.gradient_accumulation,
    )
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=options.gradient_accumulation,
        device_mapping=[0, 0],
        pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Sequential,
        recomputation_mode=ipu.ops.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
    )
    return model


def main(argv=None):
    """Run the script; return its exit code.

    That is 0; 1 if training failed, or its figures could be neither printed nor written as asked
    for; 2 if it was asked for something impossible; and 128 and the number of the signal if one
    ended it, which is 130 for Control-C.
    """
    return run(argv, __doc__, build_model)


if __name__ == "__main__":
    exit_process(main())
