"""Policies of ``kr.checkpoint`` on PyTorch, on functions of its own too."""

import functools

import keras
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import keras_recompute as kr
from keras_recompute.errors import RecomputeWarning, UnsupportedError

RNG = np.random.default_rng(0)
X = torch.tensor(RNG.normal(size=(8, 4)), dtype=torch.float32)
WEIGHTS = [torch.tensor(RNG.normal(size=(4, 4)) / 2, dtype=torch.float32) for _ in range(2)]
policies = kr.policies


class Operations(TorchDispatchMode):
    """Counts matrix products and tanhs."""

    def __init__(self):
        super().__init__()
        self.counts = {"mm": 0, "tanh": 0}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in self.counts:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def block(x, first, second):
    return torch.tanh(kr.checkpoint_name(torch.tanh(x @ first), "hidden") @ second)


def differentiated(function):
    """Return the gradients, and how many products and tanhs the backward pass repeats."""
    inputs = [t.clone().requires_grad_() for t in (X, *WEIGHTS)]
    loss = function(*inputs).sum()
    with Operations() as backward:
        gradients = torch.autograd.grad(loss, inputs)
    return gradients, backward.counts["mm"] - 4, backward.counts["tanh"]


REPEATED = {
    "nothing": (policies.save_nothing, 2, 2),
    "everything": (policies.save_everything, 0, 0),
    "matmuls": (policies.save_matmuls, 0, 2),
    # What comes before a saved value runs again too: PyTorch replays the function.
    "names": (policies.save_names("hidden"), 2, 2),
    "either": (policies.either(policies.save_names("hidden"), policies.save_matmuls), 0, 2),
    "PyTorch's own": (lambda _, operation, *__: operation is torch.ops.aten.mm.default, 0, 2),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_policy_decides_what_runs_again(name):
    policy, *repeated = REPEATED[name]
    wanted, *_ = differentiated(block)
    found, products, tanhs = differentiated(kr.checkpoint(block, policy=policy))
    for ours, plain in zip(found, wanted):
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)
    # The last product is not needed again, but PyTorch stops the replay only behind the last tanh.
    assert [products, tanhs] == repeated


def test_offloading_is_refused():
    policy = policies.save_and_offload_names(offload=("hidden",))
    with pytest.raises(UnsupportedError, match=r"save_on_cpu\(\) around the function"):
        kr.checkpoint(block, policy=policy)


def test_a_module_of_pytorch_without_keras():
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.ReLU())
    torch.manual_seed(1)
    plain = torch.autograd.grad(module(X).sum(), list(module.parameters()))
    torch.manual_seed(1)
    ours = torch.autograd.grad(kr.checkpoint(module)(X).sum(), list(module.parameters()))
    for found, wanted in zip(ours, plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_statistics_of_a_module_of_pytorch_count_once():
    def statistics(checkpoint):
        torch.manual_seed(1)
        norm = torch.nn.BatchNorm1d(8)
        module = torch.nn.Sequential(torch.nn.Linear(4, 8), norm, torch.nn.Tanh())
        for _ in range(2):
            checkpoint(module)(X).sum().backward()
        return norm.running_mean, norm.running_var, norm.num_batches_tracked, module[0].weight.grad

    wanted = statistics(lambda module: module)

    def closed_over(module):
        return kr.checkpoint(lambda x: 1 * module(x))

    for checkpoint in (kr.checkpoint, closed_over):
        for found, plain in zip(statistics(checkpoint), wanted):
            torch.testing.assert_close(found, plain, rtol=0, atol=0)


def test_unseeded_random_numbers_are_those_of_plain_calls():
    draw = kr.checkpoint(lambda x: x + keras.random.normal((8, 4)))
    keras.utils.set_random_seed(5)
    found = [draw(X) for _ in range(2)]
    keras.utils.set_random_seed(5)
    wanted = [X + keras.random.normal((8, 4)) for _ in range(2)]
    for ours, plain in zip(found, wanted):
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)
    assert not torch.equal(*found)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, while it traces Keras
def test_a_step_that_is_compiled(monkeypatch):
    """By ``jit_compile=True``. What is made of the traced program takes PyTorch minutes."""
    compile_with = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", compile_with)
    x, losses = np.random.default_rng(0).normal(size=(8, 8)).astype("float32"), []
    for every in (None, 2):
        keras.utils.set_random_seed(0)
        dense = [keras.layers.Dense(8, "tanh") for _ in range(4)]
        model = keras.Sequential([keras.Input((8,)), *dense])
        model = kr.checkpointed(model, every=every) if every else model
        model.compile("sgd", "mse", jit_compile=True)
        losses.append([float(model.train_on_batch(x, x)) for _ in range(3)])
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_a_gradient_of_ones_own_runs_once():
    reports = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, dy):
            reports.append("doubled")
            return 2.0 * dy

    def function(x):
        y = Doubled.apply(torch.tanh(x))
        y.register_hook(lambda _: reports.append("seen"))
        return y.exp()

    x = X.clone().requires_grad_()
    kr.checkpoint(function)(x).sum().backward()
    torch.testing.assert_close(x.grad, 2.0 * X.tanh().exp() * (1.0 - X.tanh() ** 2))
    assert reports == ["seen", "doubled"]


TRANSFORMS = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
    "vjp": lambda f: torch.func.vjp(f, X)[1](torch.ones(8, 4))[0],
    "jacobian": lambda f: torch.func.jacrev(f)(X),
    "of each row": lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(X),
    "hessian": lambda f: torch.func.hessian(lambda x: f(x).sum())(X[:1]),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_that_forbid_hooks_get_gradients_and_a_warning(name):
    """PyTorch's own checkpoint ends in its error there."""

    def plain(x):
        return block(x, *WEIGHTS)

    with pytest.warns(RecomputeWarning, match=r"'plain' saves no memory here.*torch\.func\.grad"):
        found = TRANSFORMS[name](kr.checkpoint(plain))
    torch.testing.assert_close(found, TRANSFORMS[name](plain))


@pytest.mark.parametrize("how", [{"every": 1}, {"layers": keras.layers.Dense}])
def test_parameters_of_a_model_in_a_transform(how):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, "gelu") for _ in range(3)]
    plain = keras.Sequential([keras.Input((4,)), *layers])
    ours = kr.checkpointed(plain, **how)

    def gradients(model):
        given = dict(model.named_parameters())

        def loss(given):
            return torch.func.functional_call(model, given, (X,), {"training": True}).sum()

        return list(torch.func.grad(loss)(given).values())

    with pytest.warns(RecomputeWarning, match="saves no memory here and is not recomputed"):
        found = gradients(ours)
    torch.testing.assert_close(found, gradients(plain))
