"""The public door: exactly these names, each documented, and no TensorFlow behind it."""

import subprocess
import sys

from keras_recompute import planning


def test_the_public_names_are_exactly_these():
    assert sorted(planning.__all__) == [
        "BudgetTooSmallError",
        "Chain",
        "Outcome",
        "Plan",
        "binomial_plan",
        "binomial_replayed_steps",
        "longest_chain",
        "mixed_plan",
        "multilevel_plan",
        "optimal_plan",
        "predicted_peak_bytes",
        "section_lengths",
        "simulate",
        "uniform_plan",
        "uniform_plan_within",
    ]
    assert all(getattr(planning, name).__doc__ for name in planning.__all__)


def test_planning_loads_no_tensorflow_and_no_numpy():
    loads = "import sys, keras_recompute.planning; print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
