"""Models of Graphcore's names in several processes, held against one process with the microbatches
of all.
"""

import numpy as np
import pytest

from .pipelines import CASES
from .running import LAUNCHER, results, run


@pytest.mark.long
def test_two_workers_come_to_what_one_process_does():
    (alone,) = results(run("tests.distribute.pipelines")).values()
    workers = results(
        run("tests.distribute.pipelines", launcher=[*LAUNCHER, "--workers", "2", "-m"])
    )
    for number, case in enumerate(CASES):
        expected = alone[number]["found"]
        # 2 epochs of 16 microbatches, 4 of them an update
        assert (expected.pop("case"), len(expected["losses"])) == (case, 8)
        for worker in (0, 1):
            found = workers[worker][number]["found"]
            assert found.pop("case") == case
            assert (
                found.keys()
                == expected.keys()
                >= {"loss", "rmse", "val_loss", "val_rmse", "evaluated", "norms"}
            )
            for name, values in expected.items():
                assert found[name] == pytest.approx(values, rel=1e-5), (case, worker, name)
            predicted = alone[number]["predicted"][worker::2]
            np.testing.assert_allclose(
                workers[worker][number]["predicted"], predicted, rtol=1e-4, atol=1e-6
            )
    for said in workers.values():
        assert said[len(CASES)]["said"].startswith(
            "the workers have different numbers of batches, in their order: 8, 4."
        )
