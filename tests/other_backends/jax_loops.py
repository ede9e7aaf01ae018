"""What the tests of loops over sections on JAX ask of a model's gradient."""

import jax
import jax.numpy as jnp


def weights_of(model):
    return [v.value for v in model.trainable_variables]


def step_of(model, x):
    """Return the gradients of a model's weights as a function of these."""
    state = [v.value for v in model.non_trainable_variables]

    def loss(weights):
        outputs, _ = model.stateless_call(weights, state, x, training=True)
        return jnp.mean(outputs**2)

    return jax.jit(jax.grad(loss))


def loops_in(model, x):
    """Return the lengths of the loops in the gradient of a model."""
    return [loop.params["length"] for loop in _loops(model, x)]


def types_in_loops(model, x, shape):
    """Return the types of the stacks of such arrays that the loops in its gradient are given."""
    given = [each.aval for loop in _loops(model, x) for each in loop.invars]
    return {str(each.dtype) for each in given if each.shape[1:] == shape}


def _loops(model, x):
    found = []

    def search(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "scan":
                found.append(equation)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                search(inner)

    search(jax.make_jaxpr(step_of(model, x))(weights_of(model)).jaxpr)
    return found
