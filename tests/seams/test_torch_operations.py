"""What PyTorch's private names must do for scopes; they run where PyTorch is installed."""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from keras_recompute.seams.torch import operations  # noqa: E402

ATEN = torch.ops.aten


class Seen(operations.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.aliases, self.operations = [], []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.operations.append(operation)
        self.aliases += [operations.detached_alias(each) for each in args[:1]]
        return operation(*args, **(kwargs or {}))


def test_current_mode():
    mode = Seen()
    assert operations.current_mode() is None
    with mode:
        assert operations.current_mode() is mode
    assert operations.current_mode() is None


def test_written_parameters_and_makes_values():
    assert operations.written_parameters(ATEN.add_.Tensor) == ((0, "self"),)
    assert operations.written_parameters(ATEN.mul.out) == ((2, "out"),)
    assert operations.written_parameters(ATEN.view.default) == ()
    assert operations.written_parameters(torch.ops.higher_order.cond) == ()
    assert operations.makes_values(ATEN.mul.Tensor)
    assert not operations.makes_values(ATEN.add_.Tensor)
    assert not operations.makes_values(ATEN.view.default)


def test_is_builtin():
    assert operations.is_builtin(ATEN.mul.Tensor)
    assert not operations.is_builtin(torch.ops.higher_order.cond)


@pytest.mark.parametrize("in_mode", [False, True])
def test_detached_alias_counts_changes(in_mode):
    x = torch.ones(3, requires_grad=True) * 2
    if in_mode:
        mode = Seen()
        with mode:
            torch.exp(x)
        alias = mode.aliases[0]
    else:
        alias = operations.detached_alias(x)
    assert alias.grad_fn is None
    assert not alias.requires_grad
    assert alias.untyped_storage() is x.untyped_storage()
    x.add_(1)
    assert operations.version_of(alias) == operations.version_of(x) == 1
    alias.data = torch.empty(0)
    x.add_(1)
    assert operations.version_of(alias) == 2


def test_reads_number():
    mode, one = Seen(), torch.ones(())
    with mode:
        float(one)
    assert [operations.reads_number(each) for each in mode.operations][-1]
    assert not operations.reads_number(ATEN.mul.Tensor)


def test_version_of_inference():
    with torch.inference_mode():
        assert operations.version_of(torch.ones(2)) == 0


def test_is_fake():
    assert not operations.is_fake(torch.ones(2))
    with FakeTensorMode():
        assert operations.is_fake(torch.ones(2))


def test_below_autograd():
    x = torch.ones(2, requires_grad=True)
    with operations.below_autograd():
        assert torch.is_grad_enabled()
        assert torch.exp(x).grad_fn is None


def test_without_modes():
    mode = Seen()
    with mode, operations.without_modes():
        torch.exp(torch.ones(2))
    assert mode.operations == []


def test_a_storage_is_one_object_that_tells_of_its_end():
    import weakref

    x, freed = torch.ones(4), []
    assert x.untyped_storage() is x.view(2, 2).detach().untyped_storage()
    weakref.finalize(x.untyped_storage(), freed.append, 1)
    view = x[1:]
    del x
    assert freed == []
    del view
    assert freed == [1]


def test_tensors_on_storage_counts_aliases():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    alone = operations.tensors_on_storage(weight)
    alias = weight.detach()
    assert operations.tensors_on_storage(weight) == alone + 1
    made = torch.ones(1, 2, requires_grad=True) @ alias  # autograd saves it
    del alias
    assert operations.tensors_on_storage(weight) == alone + 1
    made.sum().backward()
    assert operations.tensors_on_storage(weight) == alone


def test_storage_number_tells_storages_apart_and_holds_none():
    weight = torch.nn.Parameter(torch.ones(4))
    number, alone = operations.storage_number(weight), operations.tensors_on_storage(weight)
    assert number == operations.storage_number(weight.detach()[1:])
    assert operations.tensors_on_storage(weight) == alone
    old = weight.detach()
    weight.data = torch.zeros(4)
    assert operations.storage_number(weight) != number == operations.storage_number(old)
    # As sharded training does between the passes.
    old.untyped_storage().resize_(0)
    assert operations.storage_number(old) == number
    assert operations.storage_number(torch.eye(2).to_sparse()) == 0


def test_tables_of_tensors_are_those_that_a_module_reads():
    norm = torch.nn.BatchNorm1d(2)
    parameters, buffers = operations.tables_of_tensors(norm)
    assert list(parameters) == ["weight", "bias"]
    assert list(buffers) == ["running_mean", "running_var", "num_batches_tracked"]
    other = parameters["weight"] = torch.full((2,), 3.0)
    assert norm.weight is other
