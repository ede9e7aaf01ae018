"""What PyTorch's fake tensors and autograd's numbers must do; where PyTorch is installed."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from keras_recompute.seams.torch.fake_tensors import (  # noqa: E402
    UnknownValueError,
    fake_mode,
    in_backward,
    next_node,
    numbers_as_arrays,
    running_node,
    running_pass,
)


def test_numbers_as_arrays():
    with fake_mode(), numbers_as_arrays():
        number, several = torch.ones(()), torch.ones(2)
        with pytest.raises(UnknownValueError):
            np.array(number)
        with pytest.raises(RuntimeError, match="not supported"):
            np.array(several)
    assert np.array(torch.ones(2)).tolist() == [1, 1]
    assert "numpy" not in vars(type(number))


def test_fake_mode():
    weight = torch.nn.Parameter(torch.ones(3))
    mode = fake_mode()
    with mode:
        fake = mode.from_tensor(weight)
        assert isinstance(fake, torch.nn.Parameter)
        made = torch.exp(weight) + fake
        assert made.untyped_storage().nbytes() == 12
        with pytest.raises(UnknownValueError):
            float(made.detach().sum())
        with torch.no_grad():
            fake.add_(1)
    assert torch.equal(weight, torch.ones(3))


def test_sizes_that_are_made_of_numbers_are_known():
    with fake_mode():
        ends = torch.tensor([2, 5])
        # As keras.ops.split finds the sizes of its pieces.
        sizes = torch.concat([ends[:1], torch.diff(ends), 9 - ends[-1:]]).tolist()
        pieces = torch.split(torch.zeros(4, 9), sizes, dim=1)
    assert [tuple(piece.shape) for piece in pieces] == [(4, 2), (4, 3), (4, 4)]


def test_fake_mode_holds_no_storage():
    import weakref

    freed = []
    with fake_mode():
        storage = torch.empty(4).untyped_storage()
        weakref.finalize(storage, freed.append, 1)
        torch.empty(0).set_(storage, 0, (4,), (1,))
        del storage
    assert freed == [1]


class Numbers(TorchDispatchMode):
    """Notes which node each operation makes, and which one runs it."""

    def __init__(self):
        super().__init__()
        self.made, self.run = {}, {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        if in_backward():
            self.run[name] = running_node()
        else:
            self.made[name] = next_node() - 1
        return operation(*args, **(kwargs or {}))


def test_running_node_is_the_one_that_the_forward_operation_made():
    assert running_node() is None
    x = torch.ones(3, requires_grad=True)
    with Numbers() as numbers:
        torch.tanh(torch.sin(x)).sum().backward()
    assert numbers.run["cos"] == numbers.made["sin"]
    assert numbers.run["tanh_backward"] == numbers.made["tanh"]
    assert not in_backward()


def test_running_pass_is_another_number_in_each_backward_pass():
    found = []
    x = torch.ones(3, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda _: found.append(running_pass()))
    for _ in range(2):
        x.sum().backward()
    assert running_pass() is None
    assert None not in found
    assert found[0] != found[1]
