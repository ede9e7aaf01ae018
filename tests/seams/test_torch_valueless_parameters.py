"""Parameters of PyTorch without values; where PyTorch is installed."""

import pytest

torch = pytest.importorskip("torch")

import keras  # noqa: E402

if keras.config.backend() != "torch":
    pytest.skip("Keras runs on another backend", allow_module_level=True)

from keras_recompute.seams.torch.fake_tensors import fake_mode  # noqa: E402
from keras_recompute.seams.torch.valueless_parameters import (  # noqa: E402
    ValuelessParameter,
    default_device,
)


def refuse():
    raise LookupError("no value")


@pytest.fixture
def parameter():
    return ValuelessParameter.like((3, 4), torch.float32, is_trained=True, refuse=refuse)


def test_type_and_shape_are_known(parameter):
    assert (tuple(parameter.shape), parameter.dtype) == ((3, 4), torch.float32)
    assert parameter.requires_grad
    assert parameter.is_leaf
    assert (parameter.numel(), parameter.untyped_storage().nbytes()) == (12, 48)
    assert isinstance(parameter, torch.nn.Parameter)


@pytest.mark.parametrize(
    "read",
    [
        lambda p: p + 1.0,
        lambda p: torch.matmul(torch.ones(2, 3), p),
        lambda p: torch.empty_like(p, device="cpu"),
        lambda p: p.to("cpu"),
        lambda p: p.detach().numpy(),
        lambda p: torch.add(torch.ones(()), other=p),
        lambda p: torch.stack([p, p]),
        keras.ops.convert_to_tensor,
    ],
)
def test_reading_is_refused(parameter, read):
    with pytest.raises(LookupError, match="no value"):
        read(parameter)


def test_on_the_meta_device_operations_have_shapes(parameter):
    with keras.device("meta"):
        assert default_device() == "meta"
        assert tuple(keras.ops.matmul(keras.ops.ones((2, 3)), parameter).shape) == (2, 4)
    assert default_device() == "cpu"


def test_in_a_fake_mode_it_is_one_fake_parameter(parameter):
    mode = fake_mode()
    with mode:
        made = torch.ones(2, 3) @ parameter
        made.sum().backward()
        fake = mode.from_tensor(parameter)
        assert tuple(fake.grad.shape) == (3, 4)
    assert (made.device.type, type(parameter)) == ("cpu", ValuelessParameter)


def test_made_in_a_fake_mode_it_is_no_fake():
    with fake_mode():
        made = ValuelessParameter.like((2,), torch.float32, is_trained=False, refuse=refuse)
    assert (type(made), made.device.type) == (ValuelessParameter, "meta")


def test_a_value_that_is_copied_into_it_stays(parameter):
    held = torch.nn.ParameterDict({"weight": parameter})
    with torch.no_grad():
        parameter.copy_(torch.ones(3, 4))
    assert type(parameter) is torch.nn.Parameter
    assert held["weight"].sum() == 12
    assert parameter.requires_grad
