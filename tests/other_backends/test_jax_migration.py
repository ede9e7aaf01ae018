"""The tables of docs/migration.md for Keras on JAX: each row does on both sides what it says."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

import keras_recompute as kr

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
PART = PAGE.read_text(encoding="utf-8").split("### With Keras on JAX")[1].split("\n## ")[0]
ROWS = [line.split(" | ")[0].strip("| ") for line in PART.splitlines() if line.startswith("| ")]
ROWS = [row for row in ROWS if row not in ("JAX or Keras", "`kr`")]

theirs, ours = jax.checkpoint_policies, kr.policies
W = np.linspace(-1, 1, 16, dtype="float32").reshape(4, 4)
X = np.linspace(0, 1, 8, dtype="float32").reshape(2, 4)
STACK = np.stack([W, W])


def f(x):
    hidden = checkpoint_name(jnp.sin(x @ W), "a")
    stacked = jnp.einsum("bi,bij->bj", hidden, STACK)
    return checkpoint_name(jnp.sin(stacked), "b") @ W


def same(first, second, x=X):
    """Assert that two functions have one gradient, keep as many bytes and repeat as much."""
    found, wanted = (jax.grad(lambda x, g=g: jnp.sum(g(x) ** 2))(x) for g in (first, second))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    kept = [sorted(row.bytes for row in kr.saved_residuals(g, x)) for g in (first, second)]
    assert kept[0] == kept[1]
    assert kr.replay_count(first, x) == kr.replay_count(second, x)


def policy_pair(of_jax, of_kr):
    same(jax.checkpoint(f, policy=of_jax), kr.checkpoint(f, policy=of_kr))


def functions():
    for each in (jax.checkpoint(f), jax.remat(f), keras.remat(f)):
        same(each, kr.checkpoint(f))


def static_arguments():
    def power(x, n):
        return jnp.sin(jnp.sin(x)) if n == 2 else x

    plain = jax.checkpoint(power, static_argnums=1)
    same(lambda x: plain(x, 2), lambda x: kr.checkpoint(power)(x, 2))


def fence():
    same(jax.checkpoint(f, prevent_cse=False), kr.checkpoint(f))
    with pytest.raises(TypeError, match="prevent_cse"):
        kr.checkpoint(f, prevent_cse=False)


def own_policy():
    def sines(primitive, *_, **__):
        return primitive.name == "sin"

    policy_pair(sines, sines)


def names():
    def marked(mark):
        def function(x):
            return jnp.sin(mark(jnp.sin(jnp.sin(x)), "a"))

        return kr.checkpoint(function, policy=ours.save_names("a"))

    same(marked(checkpoint_name), marked(kr.checkpoint_name))


def printed(capsys):
    print_saved_residuals(jax.checkpoint(f), X)
    lines = capsys.readouterr().out.splitlines()
    kr.print_saved_residuals(kr.checkpoint(f), X)
    first, *captured = capsys.readouterr().out.splitlines()
    assert first == "float32[2,4] from the argument x"
    assert len(lines) == 1 + len(captured)


def network(scope=None):
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((4,))
    for name in "abc":
        layer = keras.layers.Dense(4, "gelu", name=name)
        if scope is not None:
            with scope():
                layer = keras.layers.Dense(4, "gelu", name=name)
        x = layer(x)
    model = keras.Model(inputs, x)
    model.set_weights([W, W[0]] * 3)
    return model


def of_model(model):
    weights = [v.value for v in model.trainable_variables]
    state = [v.value for v in model.non_trainable_variables]
    return lambda x: model.stateless_call(weights, state, x, training=True)[0]


def same_gradient(first, second):
    found, wanted = (jax.grad(lambda x, g=g: jnp.sum(g(x) ** 2))(X) for g in (first, second))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def replays(function):
    return kr.replay_count(function, X)


def all_layers():
    scoped = of_model(network(lambda: keras.RematScope(mode="full")))
    model = of_model(kr.checkpointed(network(), layers="*"))
    same_gradient(model, scoped)
    assert replays(model) > 0


def some_layers():
    listed = {"mode": "list_of_layers", "layer_names": ["a"]}
    scoped = of_model(network(lambda: keras.RematScope(**listed)))
    model = of_model(kr.checkpointed(network(), layers=["a"]))
    same_gradient(model, scoped)
    assert replays(of_model(kr.checkpointed(network(), layers="*"))) > replays(model) > 0


def layer():
    dense = keras.layers.Dense(4, "tanh")
    dense.build((None, 4))
    values = [v.value for v in dense.variables]

    def call(x):
        return dense.stateless_call(values, [], x)[0]

    same_gradient(kr.checkpoint(dense), jax.checkpoint(call))


def model_by_hand():
    model = network()
    first, second, third = model.layers[1:]
    part = jax.checkpoint(lambda x: second(first(x)))
    same_gradient(of_model(kr.checkpointed(model, every=2)), lambda x: third(part(x)))


def leaves():
    function = kr.checkpoint(f, policy=ours.save_matmuls)
    handed = {leaf.nbytes for leaf in jax.tree.leaves(jax.vjp(function, X)[1])}
    assert handed >= {row.bytes for row in kr.saved_residuals(function, X)}


def programs():
    (first, *_) = jax.make_jaxpr(lambda x: jax.vjp(f, x)[0])(X).jaxpr.eqns
    (equation, *_) = kr.forward_backward(f, X).forward.equations
    assert equation.operation == first.primitive.name == "dot_general"


def replay_number():
    assert kr.replay_count(kr.checkpoint(f), X) > 0
    assert not hasattr(jax.ad_checkpoint, "replay_count")


CASES = {
    "`jax.checkpoint(f)`, `jax.remat(f)`, `keras.remat(f)`": functions,
    "`jax.checkpoint(f, static_argnums=1)`": static_arguments,
    "`jax.checkpoint(f, prevent_cse=False)`": fence,
    "`nothing_saveable`": lambda: policy_pair(theirs.nothing_saveable, ours.save_nothing),
    "`everything_saveable`": lambda: policy_pair(theirs.everything_saveable, ours.save_everything),
    "`dots_saveable`, `checkpoint_dots`": lambda: policy_pair(
        theirs.checkpoint_dots, ours.save_matmuls
    ),
    "`dots_with_no_batch_dims_saveable`": lambda: policy_pair(
        theirs.dots_with_no_batch_dims_saveable, ours.save_matmuls_without_batch_dims
    ),
    '`save_only_these_names("a")`': lambda: policy_pair(
        theirs.save_only_these_names("a"), ours.save_names("a")
    ),
    '`save_any_names_but_these("a")`': lambda: policy_pair(
        theirs.save_any_names_but_these("a"), ours.save_all_but_names("a")
    ),
    "`save_and_offload_only_these_names(...)`": lambda: policy_pair(
        theirs.save_and_offload_only_these_names(
            names_which_can_be_saved=["a"],
            names_which_can_be_offloaded=["b"],
            offload_src="device",
            offload_dst="pinned_host",
        ),
        ours.save_and_offload_names(save=("a",), offload=("b",)),
    ),
    "`save_from_both_policies(p, q)`": lambda: policy_pair(
        theirs.save_from_both_policies(
            theirs.save_only_these_names("a"), theirs.dots_with_no_batch_dims_saveable
        ),
        ours.either(ours.save_names("a"), ours.save_matmuls_without_batch_dims),
    ),
    "a policy of one's own": own_policy,
    '`jax.ad_checkpoint.checkpoint_name(x, "a")`': names,
    "`jax.ad_checkpoint.print_saved_residuals(f, x)`": printed,
    '`keras.RematScope(mode="full")` around the layers': all_layers,
    '`keras.RematScope("list_of_layers", layer_names=["a"])`': some_layers,
    "`checkpoint(f, policy=p)`": lambda: policy_pair(theirs.dots_saveable, ours.save_matmuls),
    "`checkpoint(layer)`": layer,
    "`checkpointed(model, every=n)`, `Model`": model_by_hand,
    "`policies.save_replay_sources`": lambda: policy_pair(
        theirs.nothing_saveable, ours.save_replay_sources
    ),
    "`saved_residuals(f, x)`": leaves,
    "`forward_backward(f, x)`": programs,
    "`replay_count(f, x)`": replay_number,
}


def test_every_row_is_run():
    assert sorted(ROWS) == sorted(CASES)


def test_every_name_of_ours_is_there():
    columns = [line.split(" | ") for line in PART.splitlines() if line.startswith("| ")]
    first, second = columns[: len(columns) - 7], columns[-7:]
    cells = [row[1] for row in first] + [row[0] for row in second]
    for path in re.findall(r"`((?:policies\.)?\w+)[(`]", " ".join(cells)):
        if path not in ("kr", "f"):
            owner = ours if path.startswith("policies.") else kr
            assert hasattr(owner, path.split(".")[-1]), path


@pytest.mark.parametrize("row", CASES)
def test_both_sides_of_a_row(row, capsys):
    case = CASES[row]
    case(capsys) if case is printed else case()
