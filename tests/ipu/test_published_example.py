"""The example as Graphcore published it: Lambda slices, last outputs only, a loss that broadcasts.

It must run as it is.
"""

from functools import lru_cache

import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("graphcore_names")


@lru_cache(maxsize=None)
def train(*, recompute):
    from . import published_style  # which finds Graphcore's names now

    tf.keras.utils.set_random_seed(1)
    options = [
        "--checkpoints",
        "3",
        "--epochs",
        "3",
        *([] if recompute else ["--disable-recomputation"]),
    ]
    model, history = published_style.train(published_style.parse(options))
    return history.history["loss"], model


@pytest.mark.long
def test_recomputation_changes_nothing():
    plain, _ = train(recompute=False)
    recomputed, _ = train(recompute=True)
    assert recomputed == pytest.approx(plain, rel=1e-6)


@pytest.mark.long
def test_the_sections_are_recomputed_one_by_one():
    """Lambdas cannot be compared, so nothing is outlined.

    There are four sections of stage 0, its concatenation, and stage 1.
    """
    _, model = train(recompute=True)
    first, last = ([name for name, _ in plan.named_steps] for plan in model.pipeline.stages.plans)
    assert first[:4] == ["section-0", "section-1", "section-2", "section-3"]
    assert last == [""]
