"""The fewest replays of equal steps in a number of bytes, with every split tried.

A segment keeps its activations, or stores its input and is split. With m bytes, Q(n, m) of n steps
are replayed: 0 if n activations fit, else the least of Q(n - 1, m - activation), which keeps the
first step, and y + Q(y, m) + Q(n - y, m - state) over 0 < y < n. The package checkpoint-schedules
has the two limits: states as large as activations, and room for the activations of one step only.

Source: Gruslys et al. 2016, "Memory-Efficient Backpropagation Through Time", arXiv:1606.03401.
"""

import numpy as np


def fewest_replayed_steps(steps, *, room_bytes, state_bytes, activation_bytes):
    """Return Q as an array (room_bytes + 1, steps + 1); infinite where no plan fits."""
    replayed = np.full((room_bytes + 1, steps + 1), np.inf)
    replayed[:, 0] = 0
    lengths = np.arange(steps + 1)
    for room in range(activation_bytes, room_bytes + 1):
        here = replayed[room]
        here[: room // activation_bytes + 1] = 0
        kept_first = replayed[room - activation_bytes]
        for length in range(room // activation_bytes + 1, steps + 1):
            here[length] = kept_first[length - 1]
            if room >= state_bytes:
                after = replayed[room - state_bytes, length - 1 : 0 : -1]
                splits = lengths[1:length] + here[1:length] + after
                here[length] = min(here[length], splits.min(initial=np.inf))
    return replayed
