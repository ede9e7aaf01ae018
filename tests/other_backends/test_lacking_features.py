"""What a backend lacks is refused by name, and the plain model stays as it was."""

import keras
import numpy as np
import pytest

import keras_recompute as kr
from keras_recompute.errors import UnsupportedError
from keras_recompute.keras_backend import FEATURES, current_backend

L = keras.layers


def model():
    return keras.Sequential([keras.Input((4,)), *(L.Dense(4, "tanh") for _ in range(6))])


LACKING = [name for name, there in FEATURES.items() if current_backend() not in there]
NAMES = [name for name in LACKING if name.isidentifier() and name != "engine"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_not_there(name, monkeypatch):
    # Another test may have imported the room kr.ipu, as the example does.
    monkeypatch.delitem(vars(kr), name, raising=False)
    with pytest.raises(UnsupportedError, match=f"keras_recompute.{name} is not available on Keras"):
        getattr(kr, name)


def test_the_engine_has_only_its_policies():
    assert kr.engine.policies is kr.policies
    with pytest.raises(UnsupportedError, match=r"keras_recompute\.engine is not available on"):
        kr.engine.build  # noqa: B018


def test_a_name_is_refused_where_it_is_imported(monkeypatch):
    monkeypatch.delitem(vars(kr), "ipu", raising=False)
    with pytest.raises(UnsupportedError, match="ipu is not available"):
        from keras_recompute import ipu  # noqa: F401


def test_options_that_are_not_there():
    plain = model()
    weights = plain.get_weights()
    if "checkpointed(sample=)" in LACKING:
        with pytest.raises(UnsupportedError, match=r"checkpointed\(sample=\) is not available"):
            kr.checkpointed(plain, every=2, sample=np.zeros((2, 4)))
    ours = kr.checkpointed(plain, every=2)
    with pytest.raises(UnsupportedError, match="recomputation_levels is not available"):
        ours.recomputation_levels = 2
    if "Model.scan_layers" in LACKING:
        with pytest.raises(UnsupportedError, match="scan_layers is not available"):
            ours.scan_layers = True
    assert (ours.recomputation_levels, ours.scan_layers) == (1, False)
    if "liveness.profile" in LACKING:
        with pytest.raises(UnsupportedError, match=r"liveness\.profile is not available"):
            kr.liveness.profile(plain, np.zeros((2, 4)))
    for kept, before in zip(plain.get_weights(), weights):
        np.testing.assert_array_equal(kept, before)


def test_places_are_checked_as_on_tensorflow():
    with pytest.raises(kr.errors.InvalidArgumentError, match="has no layer 'dens'"):
        kr.checkpointed(model(), at=["dens"])
    with pytest.raises(kr.errors.InvalidArgumentError, match="every=0 is not a number"):
        kr.checkpointed(model(), every=0)
