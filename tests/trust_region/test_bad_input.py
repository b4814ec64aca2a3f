"""Every public function of the package answers bad input with one line that names the argument."""

import importlib
import inspect
import pkgutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from corral import CorralError, trust_region
from corral.trust_region import dual, fisher, subspace
from corral.trust_region.line_search import Checks

CHECKED_BY_WHO_TAKES_THEM = {
    # made by the library
    "cg.CGResult",
    "crossfit.Reach",
    "crossfit.Terms",
    "dual.Case",
    "dual.Solution",
    "line_search.LineSearch",
    "projection.Projection",
    "subspace.Restricted",
    # made by a caller's function, often on traced arrays
    "line_search.Checks",
}

vector, matrix = jnp.ones(3), jnp.ones((3, 2))
restricted = subspace.restrict(matrix, matrix, vector, jnp.ones((3, 1)))
solution = dual.solve(1.0, [0.0, 0.0], np.eye(2), [0.0, 0.0], 0.1)


class Normal(NamedTuple):
    """Normal distributions of variance one, whose Fisher matrix is the identity."""

    mean: jax.Array

    def metric(self, v):
        return v


def parameters(theta):
    return Normal(jnp.outer(jnp.arange(4.0), theta))


def checks(theta):
    return Checks(theta, jnp.ones(3))


PAIR = (matrix, matrix)
FISHER, SEARCH = (parameters, vector), (checks, vector, vector)
ONE = {"q": 1.0, "r": [0.0], "S": [[1.0]], "c": [0.0], "delta": 0.1}

BAD = {
    "cg.solve": [
        (("A", matrix), {}, "product must be a function of an (n, k) matrix, got str"),
        ((lambda V: V, vector), {}, "b must have shape (any, any) = (n, k)"),
        ((lambda V: V, jnp.ones((3, 2), int)), {}, "b must be an array of floating-point numbers, got int"),
        ((lambda V: V[:1], matrix), {}, "product(p) must have shape (3, 2)"),
        ((lambda V: V, matrix), {"iterations": -1}, "iterations must not be negative, got -1"),
        ((lambda V: V, matrix), {"tolerance": 1.0}, "tolerance must lie in [0, 1), got 1.0"),
    ],
    "cg.columns": [((matrix,), {}, "product must be a function of an (n,) vector, got ")],
    "crossfit.terms": [
        (((vector, matrix), (matrix, matrix), jnp.eye(2)), {}, "V[0] must have shape (any, any)"),
        (((matrix, vector), (matrix, matrix), jnp.eye(2)), {}, "V[1] must have shape (3, 2) = as V[0]"),
        (((matrix, matrix), (jnp.ones((2, 2)), matrix), jnp.eye(2)), {}, "G[0] must have shape (3, any)"),
        (((matrix, matrix), (matrix, vector), jnp.eye(2)), {}, "G[1] must have shape (3, 2) = as G[0]"),
        (((matrix, matrix), (matrix, matrix), jnp.ones(2)), {}, "before must have shape (2, 2)"),
    ],
    "crossfit.reach": [
        (((vector, matrix), PAIR, *[jnp.ones(2)] * 3), {}, "V[0] must have shape (any, any)"),
        (((matrix, vector), PAIR, *[jnp.ones(2)] * 3), {}, "V[1] must have shape (3, 2) = as V[0]"),
        ((PAIR, (vector, matrix), *[jnp.ones(2)] * 3), {}, "J[0] must have shape (3, 2) = as V[0]"),
        ((PAIR, (matrix, vector), *[jnp.ones(2)] * 3), {}, "J[1] must have shape (3, 2) = as V[0]"),
        ((PAIR, PAIR, vector, jnp.ones(2), jnp.ones(2)), {}, "size must have shape (2,) = (columns of V,)"),
        ((PAIR, PAIR, jnp.ones(2), vector, jnp.ones(2)), {}, "share must have shape (2,) = (columns of V,)"),
        ((PAIR, PAIR, jnp.ones(2), jnp.ones(2), vector), {}, "before must have shape (2,) = (columns of V,)"),
    ],
    "dual.solve": [
        ((), ONE | {"c": 0.0}, "c must have shape (m,)"),
        ((), ONE | {"q": [1.0]}, "q must have shape (), got (1,)"),
        ((), ONE | {"q": 1j}, "q must hold real numbers, got complex"),
        ((), ONE | {"r": [0.0, 1.0]}, "r must have shape (1,)"),
        ((), ONE | {"r": ["a"]}, "r must hold real numbers, got list"),
        ((), ONE | {"S": [1.0]}, "S must have shape (1, 1)"),
        ((), ONE | {"S": [[1.0], []]}, "S must hold real numbers, got list"),
        ((), ONE | {"delta": [0.1]}, "delta must have shape ()"),
        ((), ONE | {"delta": 0.0}, "delta, the trust region's size, must be positive, got 0.0"),
        ((), ONE | {"delta": np.nan}, "delta must be finite, got nan"),
    ],
    "fisher.operator": [
        ((parameters, matrix), {}, "theta must have shape (any,) = (parameters,)"),
        (FISHER, {"damping": -1.0}, "damping must lie in [0, inf), got -1.0"),
        (FISHER, {"damping": np.nan}, "damping must lie in [0, inf), got nan"),
        (FISHER, {"weights": jnp.ones(3)}, "weights must have shape (4,) = one for each state, got (3,)"),
        (FISHER, {"weights": jnp.asarray([1.0, 0, 0, jnp.nan])}, "weights must be finite, got nan"),
        (FISHER, {"weights": jnp.asarray([1.0, 1, 0, -1])}, "weights must not be negative, got -1"),
        (FISHER, {"weights": jnp.ones(4)}, "weights must sum to one, got 4"),
        ((lambda t: (t,), vector), {}, "metric must be given: tuple has no method `metric`"),
        ((lambda t: Normal(jnp.sum(t)), vector), {}, "parameters must give arrays with one leading axis"),
    ],
    "line_search.backtrack": [
        ((checks, matrix, matrix), {}, "theta must have shape (any,)"),
        ((checks, vector, jnp.ones(2)), {}, "step must have shape (3,) = as theta"),
        (SEARCH, {"shrink": 1.0}, "shrink must lie in (0, 1), got 1.0"),
        (SEARCH, {"candidates": 0}, "candidates must be at least 1, got 0"),
        ((lambda t: t, vector, vector), {}, "check must return Checks, got ShapeDtypeStruct"),
        ((lambda t: Checks(t[0], t[0]), vector, vector), {}, "check's value must have shape (any,)"),
        ((lambda t: Checks(t, t[:2]), vector, vector), {}, "check's limit must have shape (3,)"),
    ],
    "projection.onto_half_spaces": [
        ((jnp.eye(2), jnp.ones((2, 1))), {}, "v must have shape (any,) = (constraints,)"),
        ((jnp.eye(2), jnp.ones(3)), {}, "S must have shape (3, 3) = (constraints, constraints)"),
    ],
    "subspace.restrict": [
        ((vector, vector, vector, matrix), {}, "V must have shape (any, any)"),
        ((matrix, vector, vector, matrix), {}, "HV must have shape (3, 2) = as V"),
        ((matrix, matrix, jnp.ones(2), matrix), {}, "g must have shape (3,)"),
        ((matrix, matrix, vector, vector), {}, "B must have shape (3, any)"),
    ],
    "subspace.with_terms": [
        ((vector, vector, matrix), {}, "V must have shape (any, any)"),
        ((matrix, vector, matrix), {}, "HV must have shape (3, 2) = as V"),
        ((matrix, matrix, matrix), {}, "M must have shape (2, any) = (columns of V, 1 + constraints)"),
    ],
    "subspace.Restricted.step": [((restricted, solution), {}, "solution.beta must have shape (1,)")],
}


def public_modules():
    names = [m.name for m in pkgutil.iter_modules(trust_region.__path__) if not m.name.startswith("_")]
    return {name: importlib.import_module(f"corral.trust_region.{name}") for name in names}


def test_every_public_name_is_in_the_table():
    public = {
        f"{name}.{key}"
        for name, module in public_modules().items()
        for key, value in vars(module).items()
        if inspect.isfunction(value) or inspect.isclass(value)
        if not key.startswith("_") and value.__module__ == module.__name__
    }
    assert public == {key for key in BAD if key.count(".") == 1} | CHECKED_BY_WHO_TAKES_THEM


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [pytest.param(name, *case, id=f"{name}-{case[2]}") for name, cases in BAD.items() for case in cases],
)
def test_bad_input_is_named_in_one_line(name, arguments, options, message, no_type_checks):
    module, *path = name.split(".")
    function = public_modules()[module]
    for part in path:
        function = getattr(function, part)
    with pytest.raises(CorralError) as caught:
        function(*arguments, **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_products_are_checked_when_they_are_made(no_type_checks):
    product = fisher.operator(parameters, vector)
    with pytest.raises(CorralError, match=r"V must have shape \(3, any\)"):
        product(jnp.ones((4, 1)))


@pytest.fixture
def no_type_checks():
    """Turn off the run-time type checks of the tests, which a user does not have."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
