"""The script with a training that takes no TensorFlow: two updates, after which --epochs 2 goes on
for ever.

Run as a program, it is what the tests end, and what they give no output and no disk to.
"""

import time

from keras_recompute.liveness import Buffer, Program, Step
from lstm_example import run as course
from lstm_example.sequence_plans import named_plans
from lstm_example.training_run import TrainingRun

PROGRAM = Program(
    "pretended",
    "hand",
    (Step("a", 7), Step("b", 3)),
    (Buffer("w", 10, 0, 1, "always-live", "weight"),),
)


class Pretended(TrainingRun):
    """A run whose figures are made up."""

    def train(self, _):
        """Do as if two updates were done."""
        record = self.record
        (record.plan,) = named_plans(self.options)
        record.program, record.parameters, record.losses = PROGRAM, 10, [2.0, 1.0]
        record.seconds += [0.5, 0.5]
        self.progress.say("update 2/2")
        while self.options.epochs > 1:
            time.sleep(0.05)
            self.progress.say("again")
        record.completed = True


if __name__ == "__main__":
    course.TrainingRun = Pretended
    course.exit_process(course.run(None, "A pretended script.\n\nNo more.", None))
