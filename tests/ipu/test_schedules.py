"""Under every schedule and mode a pipeline trains to the plain model's numbers.

The stages run in the documented order.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracle import assert_all_close

from .pipeline_oracle import BATCH, ORDERS, data, pipelined, trained_plainly

pytestmark = pytest.mark.usefixtures("graphcore_names")


UPDATES = 20
THEN, BETWEEN = "RecomputeThenBackpropagate", "RecomputeAndBackpropagateInterleaved"


@pytest.fixture(scope="module")
def plain():
    """Losses, weights and metrics of the plain model, trained once per variant.

    The key is the number of stages, and whether a layer is shared.
    """
    made = {}

    def of(stages, microbatches, *, shares):
        key = stages, microbatches, shares
        if key not in made:
            made[key] = trained_plainly(
                stages, microbatches=microbatches, updates=UPDATES, shares=shares
            )
        return made[key]

    return of


@pytest.mark.long
@pytest.mark.parametrize(
    ("stages", "schedule", "mode"),
    [
        # Every mode that a schedule has (Graphcore: Keras models), for 2, 3 and 4 stages; and
        # without recomputation.
        *((s, "Grouped", mode) for s in (2, 3, 4) for mode in (THEN, BETWEEN)),
        *((s, "Interleaved", THEN) for s in (2, 3, 4)),
        *((s, "Sequential", BETWEEN) for s in (2, 3, 4)),
        (3, "Interleaved", None),
    ],
)
def test_losses_after_twenty_updates_are_those_of_the_plain_model(plain, stages, schedule, mode):
    """The model has most features at once.

    They are a shared layer, dropout, batch statistics, two inputs, two weighted outputs, added
    losses and a decreasing learning rate.
    """
    microbatches = 2 * stages
    model = pipelined(stages, schedule, mode, microbatches=microbatches, updates=4)
    x, y, weights = data(microbatches * UPDATES)
    history = model.fit(x, y, sample_weight=weights, batch_size=BATCH, shuffle=False, verbose=0)
    losses, expected, metrics = plain(stages, microbatches, shares=schedule != "Interleaved")
    assert len(losses) == UPDATES
    assert losses[-1] < 0.9 * losses[0], "nothing was learnt"
    np.testing.assert_allclose(model.training_record.losses, losses, atol=1e-5)
    assert_all_close(model.get_weights(), expected, atol=1e-4)
    for name, value in metrics.items():
        assert history.history[name][0] == pytest.approx(value, abs=1e-4), name
    order = [str(action) for action in model.training_record.order]
    assert order == [
        str(action) for action in model.pipeline.schedule(trains=True).actions(microbatches)
    ]
    if stages == 2:
        assert order == ORDERS[schedule].replace("|", "").split(), "not the documented table"
