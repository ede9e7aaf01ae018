"""Train a long recurrent network with recomputation checkpoints, and show the memory that it takes.

The sequence is split into equal sections, separated by RecomputationCheckpoint layers, in a pipelined Keras model with
the mode RecomputeAndBackpropagateInterleaved. Only the states between sections are kept for the backward pass; within a
section everything is recomputed. The number of checkpoints changes the memory, never what is computed.

    python3 recompute_lstm.py --checkpoints 7                    a byte-level language model, on this machine
    python3 recompute_lstm.py --checkpoints 0 --report plain     the same without checkpoints, with a report
    python3 recompute_lstm.py --data constant --target ipu       the published example, on an IPU with the Poplar SDK

Runs on stock TensorFlow (target xla), and beside the Poplar SDK on an IPU (ipu) or its simulator (ipu-model).
"""

import argparse
import contextlib
import importlib.util
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from keras_recompute.errors import InvalidArgumentError, RecomputeError, TargetError
from keras_recompute.planning import predicted_peak_bytes, section_lengths
from keras_recompute.sizes import format_bytes

CAPACITY_BYTES = 1472 * 624 * 1024  # the memory of one Mk2 IPU: tiles x KiB per tile
SYMBOLS = 256
MICROBATCHES_PER_EPOCH = {"text": 40, "constant": 4}  # constant: the published 64 samples
LEARNING_RATE = {"text": 0.01, "constant": 0.001}


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line as one line, like every other error of this script."""

    def error(self, message):
        raise InvalidArgumentError(f"{message} (--help lists the options)")


def whole_number(at_least):
    """Return a converter to whole numbers of at least ``at_least``."""

    def convert(text):
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < at_least:
            raise argparse.ArgumentTypeError(f"{number} is too small: the least is {at_least}")
        return number

    return convert


def positive_number(text):
    """Convert to a finite number above zero."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number above zero")
    return number


def parse_arguments(argv):
    """Return the arguments, checked as far as they can be without TensorFlow. Raises InvalidArgumentError."""
    summary, _, details = __doc__.partition("\n\n")
    parser = Parser(
        prog="recompute_lstm.py", description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = parser.add_argument_group("model")
    model.add_argument("--checkpoints", type=whole_number(0), default=7, metavar="N", help="checkpoints; N + 1 sections (7)")
    model.add_argument("--seq-len", type=whole_number(1), default=2048, metavar="N", help="timesteps (2048)")
    model.add_argument("--cell", choices=("lstm", "gru"), default="lstm", help="recurrent cell (lstm)")
    model.add_argument("--units", type=whole_number(1), default=256, metavar="N", help="units of the cell (256)")
    model.add_argument("--features", type=whole_number(1), default=512, metavar="N", help="features per timestep (512)")
    model.add_argument("--no-recompute", action="store_true", help="keep every activation, to compare with")
    training = parser.add_argument_group("training")
    training.add_argument("--data", choices=("text", "constant"), default="text", help="what to learn (text)")
    training.add_argument("--text", type=Path, metavar="FILE", help="text to learn (the Python language reference)")
    training.add_argument("--batch-size", type=whole_number(1), default=16, metavar="N", help="sequences per microbatch (16)")
    training.add_argument(
        "--gradient-accumulation", type=whole_number(1), default=4, metavar="N", help="microbatches per update (4)"
    )
    training.add_argument("--epochs", type=whole_number(1), default=1, metavar="N", help="epochs (1)")
    training.add_argument(
        "--steps-per-epoch", type=whole_number(1), metavar="N", help="microbatches per epoch (text: 40, constant: 4)"
    )
    training.add_argument("--learning-rate", type=positive_number, metavar="X", help="(text: Adam 0.01, constant: SGD 0.001)")
    training.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="seed of weights and data (0)")
    training.add_argument(
        "--target", choices=("auto", "xla", "ipu", "ipu-model"), default="auto", help="where to run (auto: ipu if there)"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--report", type=Path, metavar="DIR", help="write liveness.json and liveness.png there")
    output.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    output.add_argument("--force", action="store_true", help="write over what is there")
    output.add_argument("--quiet", action="store_true", help="print the last lines only")
    arguments = parser.parse_args(argv)

    if arguments.checkpoints >= arguments.seq_len:
        raise InvalidArgumentError(
            f"--checkpoints {arguments.checkpoints}: a sequence of {arguments.seq_len} steps has room for at most "
            f"{arguments.seq_len - 1}; lower --checkpoints or raise --seq-len"
        )
    arguments.steps_per_epoch = arguments.steps_per_epoch or MICROBATCHES_PER_EPOCH[arguments.data]
    arguments.learning_rate = arguments.learning_rate or LEARNING_RATE[arguments.data]
    if arguments.steps_per_epoch % arguments.gradient_accumulation:
        raise InvalidArgumentError(
            f"--gradient-accumulation {arguments.gradient_accumulation} does not divide the {arguments.steps_per_epoch} "
            f"microbatches of an epoch: change it or --steps-per-epoch"
        )
    if arguments.text and arguments.data != "text":
        raise InvalidArgumentError(f"--text {arguments.text} is not used with --data {arguments.data}: leave out one of them")
    arguments.target = choose_target(arguments.target)
    return arguments


def choose_target(wanted):
    """Return the target to run on. Raises TargetError if the Poplar SDK is asked for and not there."""
    tensorflow = importlib.util.find_spec("tensorflow")
    folders = list(tensorflow.submodule_search_locations) if tensorflow else []
    has_sdk = any((Path(folder) / "python" / "ipu").is_dir() for folder in folders)
    if wanted == "auto":
        return "ipu" if has_sdk else "xla"
    if wanted != "xla" and not has_sdk:
        raise TargetError(
            f"--target {wanted} needs the Poplar SDK's TensorFlow, and this Python has none: enable the SDK and use its "
            f"Python environment, or take --target xla"
        )
    return wanted


def check_outputs(arguments):
    """Find out before training whether the results can be written. Raises InvalidArgumentError."""
    for option, path in (("--report", arguments.report), ("--json", arguments.json)):
        if path is None:
            continue
        if path.exists() and not arguments.force:
            raise InvalidArgumentError(
                f"{option} {path}: it exists already; choose another name, or write over it with --force"
            )
        if path.exists() and path.is_dir() != (option == "--report"):
            raise InvalidArgumentError(f"{option} {path}: that is {'a folder' if path.is_dir() else 'a file'}")
        folder = next(parent for parent in (path if path.is_dir() else path.parent, *path.parents) if parent.exists())
        if option == "--json" and folder != path.parent:
            raise InvalidArgumentError(f"{option} {path}: the folder {path.parent} does not exist; make it first")
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise InvalidArgumentError(f"{option} {path}: {folder} cannot be written ({error.strerror})") from None


def read_text(arguments):
    """Return the text to learn as bytes. Raises InvalidArgumentError if it cannot be read or is too short."""
    needed = arguments.seq_len + 1
    if arguments.text is None:
        from pydoc_data.topics import topics  # the language reference that CPython carries: real English, offline

        text, name = "\n".join(topics[key] for key in sorted(topics)).encode(), "the Python language reference"
    else:
        name = f"--text {arguments.text}"
        try:
            text = arguments.text.read_bytes()
        except OSError as error:
            raise InvalidArgumentError(f"{name}: it cannot be read ({error.strerror})") from None
    if len(text) < needed:
        raise InvalidArgumentError(
            f"{name} has {len(text)} bytes, but one sequence of {arguments.seq_len} steps needs {needed}: "
            f"give a longer text, or lower --seq-len"
        )
    return text


def sections_of(arguments):
    """Return (begin, end) of each section. Sections of equal length stand side by side, so that they share a program."""
    lengths = sorted(section_lengths(arguments.seq_len, arguments.checkpoints + 1), reverse=True)
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    if lengths[0] != lengths[-1]:
        longer, shorter = lengths.count(lengths[0]), lengths.count(lengths[-1])
        print(
            f"warning: {arguments.seq_len} steps can't be evenly divided into {len(lengths)} sections: {longer} of "
            f"{lengths[0]} steps and {shorter} of {lengths[-1]}. Sections of one length share one outlined program; here "
            f"that is lost between the two lengths, and the program is larger",
            file=sys.stderr,
        )
    return list(zip([0, *ends], ends))


def make_dataset(tf, arguments, text):
    """Return the microbatches of one epoch, of fixed shape: (inputs, targets)."""
    import numpy as np

    count = arguments.steps_per_epoch * arguments.batch_size
    if arguments.data == "constant":
        features = np.ones((arguments.seq_len, arguments.features), np.float32)
        target = np.full((arguments.seq_len, 1), 0.2, np.float32)
        dataset = tf.data.Dataset.from_tensors((features, target)).repeat(count)
    else:
        begins = np.random.RandomState(arguments.seed).randint(0, len(text) - arguments.seq_len, size=count)
        symbols = np.frombuffer(text, np.uint8).astype(np.int32)
        windows = np.stack([symbols[begin : begin + arguments.seq_len + 1] for begin in begins])
        dataset = tf.data.Dataset.from_tensor_slices((windows[:, :-1], windows[:, 1:]))
    return dataset.batch(arguments.batch_size, drop_remainder=True)


def build_model(tf, arguments):
    """Return the compiled pipelined model. Called in the scope of an IPUStrategy; the same for every target."""
    import ipu_tensorflow_addons.keras.layers as ipu_layers
    from tensorflow.python import ipu

    from keras_recompute.layers.time_slice import TimeSlice

    keras, is_text = tf.keras, arguments.data == "text"
    if is_text:
        inputs = keras.layers.Input((arguments.seq_len,), batch_size=arguments.batch_size, dtype="int32")
        embedding = keras.layers.Embedding(SYMBOLS, arguments.features)
    else:
        inputs = keras.layers.Input((arguments.seq_len, arguments.features), batch_size=arguments.batch_size)
    cell = {"lstm": ipu_layers.PopnnLSTM, "gru": ipu_layers.PopnnGRU}[arguments.cell]

    # A pipeline is needed even if there is only one device.
    with keras.ipu.PipelineStage(0):
        recurrent = cell(arguments.units, return_sequences=True, return_state=True)
        state, outputs = None, []
        sections = sections_of(arguments)
        for number, (begin, end) in enumerate(sections):
            x = TimeSlice(begin, end)(inputs)
            x = embedding(x) if is_text else x
            output, *state = recurrent(x, initial_state=state)
            outputs.append(output)
            # The last state is not needed again, so it needs no checkpoint.
            if number + 1 < len(sections):
                state = ipu_layers.RecomputationCheckpoint()(state)
        x = keras.layers.Concatenate(axis=1)(outputs) if len(outputs) > 1 else outputs[0]
    with keras.ipu.PipelineStage(1):
        x = keras.layers.Dense(SYMBOLS if is_text else 1)(x)

    model = keras.Model(inputs, x)
    optimizer = keras.optimizers.Adam if is_text else keras.optimizers.SGD
    model.compile(
        optimizer(arguments.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True) if is_text else "mse",
        steps_per_execution=arguments.gradient_accumulation,
    )
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=arguments.gradient_accumulation,
        device_mapping=[0, 0],
        pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Sequential,
        recomputation_mode=ipu.ops.pipelining_ops.RecomputationMode.RecomputeAndBackpropagateInterleaved,
    )
    return model


class NonFiniteLossError(RecomputeError):
    """The loss is no number any more; to go on would train nothing."""


class Session:
    """One run of the script: what it found out so far, and how it says so."""

    def __init__(self, arguments):
        self.arguments = arguments
        lengths = section_lengths(arguments.seq_len, arguments.checkpoints + 1)
        self.results = {
            "target": arguments.target,
            "cell": arguments.cell,
            "seq_len": arguments.seq_len,
            "checkpoints": arguments.checkpoints,
            "sections": sorted(lengths, reverse=True),
            "recompute": not arguments.no_recompute,
            "losses": [],
            "gradient_norms": [],
            "capacity_bytes": CAPACITY_BYTES,
            "versions": {"python": platform.python_version()},
            "completed": False,
        }
        self.seconds = []
        self.model = self.program = None

    def say(self, text):
        """Print progress, unless asked to be quiet."""
        if not self.arguments.quiet:
            print(text, flush=True)

    def train(self, text):
        """Build, compile, fit and report."""
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if self.arguments.target == "ipu-model":
            os.environ["TF_POPLAR_FLAGS"] = (os.environ.get("TF_POPLAR_FLAGS", "") + " --use_ipu_model").strip()
        self.say("loading TensorFlow")
        import tensorflow as tf

        if self.arguments.target == "xla":
            from keras_recompute.ipu import install

            install()
        from tensorflow.python import ipu

        self.results["versions"].update(tensorflow=tf.__version__, keras=tf.keras.__version__)
        config = ipu.config.IPUConfig()
        config.auto_select_ipus = 1
        config.allow_recompute = not self.arguments.no_recompute
        config.configure_ipu_system()
        tf.random.set_seed(self.arguments.seed)
        if hasattr(tf.keras.utils, "set_random_seed"):  # Keras 2.6 has no seed of its own
            tf.keras.utils.set_random_seed(self.arguments.seed)
        with ipu.ipu_strategy.IPUStrategy().scope():
            self.model = build_model(tf, self.arguments)
            self.results["parameters"] = self.model.count_params()
            dataset = make_dataset(tf, self.arguments, text)
            if self.arguments.target == "xla":
                self.compile(dataset)
            self.fit(tf, dataset)
        self.results["completed"] = True

    def compile(self, dataset):
        """Compile the training program once before it runs, to learn its memory from it."""
        from keras_recompute.liveness import profile

        self.say("compiling the training program")
        feed = self.model.feed_signature(dataset.element_spec)
        self.program = program = profile(self.model.execution, feed, input_feed=["feed"], capacity_bytes=CAPACITY_BYTES)
        for key in (
            "always_live_bytes",
            "not_always_live_peak_bytes",
            "peak_bytes",
            "input_feed_bytes",
            "allocated_temporary_bytes",
            "program_steps",
            "program_instructions",
            "compile_seconds",
        ):
            self.results[key] = getattr(program, key)
        self.say(f"compiled in {program.compile_seconds:.1f} s: the peak will be {format_bytes(program.peak_bytes)}")

    def fit(self, tf, dataset):
        """Train, with a line of progress per update."""
        arguments = self.arguments
        progress = tf.keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda *_: self.begin(), on_train_batch_end=lambda _, logs: self.end(logs)
        )
        self.model.around_execution = self.measured
        self.model.fit(
            dataset.repeat(),
            epochs=arguments.epochs,
            steps_per_epoch=arguments.steps_per_epoch,
            shuffle=False,
            verbose=0,
            callbacks=[progress],
        )

    @contextlib.contextmanager
    def measured(self):
        """Measure the process while the program runs for the first time; it keeps that memory for later runs."""
        from keras_recompute.liveness import process_memory

        if "measured_peak_bytes" in self.results:
            yield
            return
        with process_memory() as memory:
            yield
        self.results["measured_peak_bytes"] = memory.over_idle_bytes

    def begin(self):
        """Note when an execution begins."""
        self.started = time.perf_counter()

    def end(self, logs):
        """Take the figures of the execution that just ended, and stop if the loss is no number."""
        arguments, results = self.arguments, self.results
        microbatches = arguments.gradient_accumulation
        self.seconds.append((time.perf_counter() - self.started) / microbatches)
        record = getattr(self.model, "training_record", None)  # the stand-in's; Graphcore's API has running means only
        results["losses"] = list(record.losses) if record else [*results["losses"], float(logs["loss"])]
        results["gradient_norms"] = list(record.gradient_norms) if record else None
        # The first execution compiles.
        results["step_seconds"] = statistics.median(self.seconds[1:] or self.seconds)
        done, loss = len(self.seconds), results["losses"][-1]
        total = arguments.epochs * arguments.steps_per_epoch // microbatches
        self.say(f"update {done}/{total}  loss {loss:.4f}  {self.seconds[-1]:.2f} s per step")
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                f"the loss became {loss} at update {done} (step {done * microbatches}): lower --learning-rate "
                f"(it is {arguments.learning_rate:g})"
            )

    def report(self):
        """Print the figures and write the files that were asked for."""
        arguments, results = self.arguments, self.results
        if self.program:
            from keras_recompute.report import memory_rows, print_liveness, print_memory, write_report

            results["predicted_peak_bytes"] = predicted_peak_bytes(**self.sizes())
            if not arguments.quiet:
                print_liveness(self.program)
                rows = memory_rows(
                    predicted=results["predicted_peak_bytes"],
                    compiled=results["peak_bytes"],
                    measured=results.get("measured_peak_bytes"),
                )
                print_memory(rows)
                print()
            if arguments.report:
                write_report(self.program, arguments.report, title=self.title())
        if results["losses"]:
            print(f"loss: {results['losses'][-1]:.4f} (at first {results['losses'][0]:.4f})")
            print(f"seconds per step: {results['step_seconds']:.3f}")
        if self.program:
            print(
                f"peak: {format_bytes(results['peak_bytes'])} of the {format_bytes(CAPACITY_BYTES)} of a Mk2 IPU, "
                f"always-live: {format_bytes(results['always_live_bytes'])}"
            )
        if arguments.report and self.program:
            print(f"report: {arguments.report / 'liveness.png'}")
        self.write_json()

    def write_json(self):
        """Write the figures, whole or not at all."""
        path = self.arguments.json
        if path is None:
            return
        text = json.dumps(self.results, indent=1) + "\n"
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)

    def title(self):
        """Return what the report is about, for its picture."""
        arguments = self.arguments
        recomputes = "without recomputation" if arguments.no_recompute else f"{arguments.checkpoints} recomputation checkpoints"
        return f"{arguments.cell.upper()}, {arguments.seq_len} steps, {recomputes}"

    def sizes(self):
        """Return what the planner's prediction depends on."""
        arguments = self.arguments
        return {
            "cell": arguments.cell,
            "steps": arguments.seq_len,
            "checkpoints": arguments.checkpoints,
            "recompute": not arguments.no_recompute,
            "batch": arguments.batch_size,
            "features": arguments.features,
            "units": arguments.units,
            "outputs": SYMBOLS if arguments.data == "text" else 1,
            "embedded_symbols": SYMBOLS if arguments.data == "text" else 0,
            "optimizer_slots": 2 if arguments.data == "text" else 0,  # Adam's moments
        }


def main(argv=None):
    """Run the script; return 0, 1 if training failed, 2 if it was asked for something impossible, 130 if interrupted."""
    try:
        arguments = parse_arguments(argv)
        check_outputs(arguments)
        text = read_text(arguments) if arguments.data == "text" else None
    except SystemExit as stop:  # --help
        return stop.code or 0
    except RecomputeError as error:
        print(f"recompute_lstm.py: {error}", file=sys.stderr)
        return 2
    session = Session(arguments)
    failures = []

    def work():
        try:
            session.train(text)
        except BaseException as error:  # handed to the main thread, which decides what to say
            failures.append(error)

    # A compiled program cannot be interrupted, but the thread that waits for it can.
    worker = threading.Thread(target=work, name="training", daemon=True)
    try:
        worker.start()
        while worker.is_alive():
            worker.join(0.2)
        if failures:
            raise failures[0]
        session.report()
    except KeyboardInterrupt:
        session.write_json()
        print(
            f"recompute_lstm.py: interrupted after {len(session.seconds)} updates; what was reported is kept", file=sys.stderr
        )
        return 130
    except RecomputeError as error:
        session.write_json()
        print(f"recompute_lstm.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # An interrupted program still computes in its thread; waiting for it could take long.
    os._exit(code) if code == 130 else sys.exit(code)
