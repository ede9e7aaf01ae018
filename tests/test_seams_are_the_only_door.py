"""Private names of TensorFlow, Keras and PyTorch are touched in ``keras_recompute.seams`` alone.

Read from the AST of every file of the package, of the example and of the benchmarks. A private
name is

* an import from a package of theirs that is not public, and ``tf.__internal__``;
* an attribute with one leading underscore, of any object, that no file of ours defines; one that a
  seam reaches too must be defined in the same file. The same for names in ``getattr`` and its kin;
* a method of such a name in a class of ours, which would override theirs;
* an ``__init__``, ``__new__`` or ``__call__`` that is put into a class from outside.

Not seen: names in lists and in ``vars(...)``, a private name of theirs that a file of ours defines
too, and public names that are patched. Where classes of ours derive from Keras's,
``test_no_name_of_ours_hides_one_of_keras`` finds the second kind.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest

import keras_recompute as kr
from keras_recompute.ipu.models.pipelined import (
    PipelinedModel,
    PipelinedSequential,
    PipelinedSubclass,
)
from keras_recompute.models.classes.layer_remat import BlocksModel
from keras_recompute.models.classes.placed_model import PlacedModel

ROOT = Path(__file__).parents[1]
SEAMS = ROOT / "keras_recompute" / "seams"
INSIDE = sorted(SEAMS.rglob("*.py"))
FOLDERS = (ROOT / "keras_recompute", ROOT / "lstm_example", ROOT / "benchmarks")
OUTSIDE = sorted(
    {*ROOT.glob("*.py"), *(file for folder in FOLDERS for file in folder.rglob("*.py"))} - {*INSIDE}
)
PACKAGES = tuple(
    f"{package}."
    for package in (
        *("tensorflow.python", "tensorflow.compiler", "tensorflow.core", "keras.src"),
        *("tf.python", "tf.compiler", "tf.core"),
        *("torch._C", "torch._ops", "torch._subclasses"),
    )
)
GRAPHCORES = "tensorflow.python.ipu"  # Graphcore's public modules stand there
# Of a named tuple, of os, of the spec of a module that is being imported
PYTHONS = {"_fields", "_exit", "_initializing"}
REACHING = {"getattr", "setattr", "hasattr", "delattr", "__setattr__"}
PATCHED = {"__init__", "__new__", "__call__"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def reached(tree: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """Yield each place where an attribute is reached, its name, and the object, as source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node, node.attr, ast.unparse(node.value)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).split(".")[-1] in REACHING
            and len(node.args) > 1
        ):
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name, name.value, ast.unparse(node.args[0])


def defined(tree: ast.AST) -> set[str]:
    """Return the names of functions, classes, attributes of classes, and attributes that are set on
    ``self``.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            body = [
                statement
                for statement in node.body
                if isinstance(statement, (ast.Assign, ast.AnnAssign))
            ]
            targets = [
                t for s in body for t in (s.targets if isinstance(s, ast.Assign) else [s.target])
            ]
            found |= {
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            }
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        ):
            found.add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "vars(self).update":
            found |= {keyword.arg for keyword in node.keywords if keyword.arg}
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "object.__setattr__":
            found |= {c.value for c in node.args[1:2] if isinstance(c, ast.Constant)}
    return found


def theirs(files: list[Path]) -> set[str]:
    """Return the private names that seams reach: all but those of their own, unless these override
    one of theirs.
    """
    trees = [ast.parse(file.read_text()) for file in files]
    overridden = {
        name for tree in trees for _, name, owner in reached(tree) if owner.startswith("super(")
    }
    own = set().union(*map(defined, trees)) - overridden
    return {name for tree in trees for _, name, _ in reached(tree) if is_private(name)} - own


def private_names(source: str, *, ours: set[str], theirs: set[str]) -> list[tuple[int, str]]:
    """Return line and name of what ``source`` touches."""
    tree = ast.parse(source)
    here, found = defined(tree), []
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [(node.lineno, m) for m in modules if f"{m}.".startswith(PACKAGES)]
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and node.attr in PATCHED
        ):
            found.append((node.lineno, ast.unparse(node)))
        if isinstance(node, ast.ClassDef):
            found += [
                (m.lineno, f"def {m.name}")
                for m in node.body
                if isinstance(m, ast.FunctionDef) and m.name in theirs
            ]
    for node, name, owner in reached(tree):
        own = name in PYTHONS or (name in here if name in theirs else name in ours)
        if (
            name == "__internal__"
            or (is_private(name) and not own)
            or f"{owner}.{name}.".startswith(PACKAGES)
        ):
            found.append((node.lineno, f"{owner}.{name}"))
    return sorted(
        (line, name) for line, name in found if not f"{name}.".startswith(f"{GRAPHCORES}.")
    )


OURS = set().union(*(defined(ast.parse(file.read_text())) for file in OUTSIDE))
THEIRS = theirs(INSIDE)


@pytest.mark.parametrize("file", OUTSIDE, ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_else_touches_a_private_name(file: Path):
    found = private_names(file.read_text(), ours=OURS, theirs=THEIRS)
    assert not found, "\n".join(f"{file.relative_to(ROOT)}:{line}: {name}" for line, name in found)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from tensorflow.python.eager import record", ["tensorflow.python.eager.record"]),
        ("def f():\n    from tensorflow import python", ["tensorflow.python"]),
        ("import keras.src.backend as b", ["keras.src.backend"]),
        ("from torch._C import _autograd", ["torch._C._autograd"]),
        ("from tensorflow.python import ipu\nimport tensorflow.python.ipu.config", []),
        ("tf.__internal__.EagerTensor", ["tf.__internal__"]),
        ("tf.python.eager", ["tf.python.eager", "tf.python"]),
        ("keras.src.ops", ["keras.src.ops", "keras.src"]),
        ("graph._get_function(name)", ["graph._get_function"]),
        ("getattr(layer, '_nobodys', None)", ["layer._nobodys"]),
        # Then a file defines it: it is found where it is read elsewhere
        ("object.__setattr__(t, '_keras_mask', m)", []),
        ("setattr(t, '_keras_mask', m)", ["t._keras_mask"]),
        (
            "class M(keras.Model):\n    def _run_through_graph(self): pass",
            ["def _run_through_graph"],
        ),
        ("keras.Model.__new__ = made", ["keras.Model.__new__"]),
        ("self._nobodys", ["self._nobodys"]),
        ("self._ours + other._ours + value._fields + os._exit", []),
        ("class A:\n    def __init__(self):\n        self._layers = []", []),
    ],
)
def test_the_reader_sees_what_it_should(source: str, names: list[str]):
    """A check that saw nothing would pass."""
    theirs = {"_get_function", "_keras_mask", "_run_through_graph", "_layers"}
    assert sorted(
        name for _, name in private_names(source, ours={"_ours"}, theirs=theirs)
    ) == sorted(names)


def test_the_seams_are_read():
    assert {
        "_get_function",
        "_run_through_graph",
        "_compute_attention",
        "_call_context_args",
    } <= THEIRS
    assert not {"_set", "_noting", "_track_as", "_first"} & THEIRS


def test_every_seam_has_a_test():
    names = {
        node.name
        for file in INSIDE
        for node in ast.parse(file.read_text()).body
        if hasattr(node, "name")
    }
    tried = "".join(file.read_text() for file in (ROOT / "tests" / "seams").glob("test_*.py"))
    assert not {name for name in names if not is_private(name) and name not in tried}


@pytest.mark.parametrize(
    ("ours", "plain"),
    [
        (kr.Model, keras.models.Model),
        (PlacedModel, keras.Model),
        (BlocksModel, keras.Model),
        (PipelinedModel, keras.Model),
        (PipelinedSequential, keras.Sequential),
        (PipelinedSubclass, keras.Model),
        (kr.MultiHeadAttention, keras.layers.MultiHeadAttention),
        (kr.LSTM, keras.layers.LSTM),
        (kr.GRU, keras.layers.GRU),
        (kr.RecomputationCheckpoint, keras.layers.Layer),
        (kr.TimeSlice, keras.layers.Layer),
    ],
    ids=lambda cls: f"{cls.__module__}.{cls.__name__}",
)
def test_no_name_of_ours_hides_one_of_keras(ours: type, plain: type):
    arguments = {
        keras.layers.MultiHeadAttention: (1, 1),
        keras.layers.LSTM: (1,),
        keras.layers.GRU: (1,),
    }.get(plain, ())
    x = keras.Input((1,))
    made = [
        plain(*arguments),
        *([keras.Model(x, keras.layers.Identity()(x))] if plain is keras.Model else []),
    ]
    keras_counterpart = {name for each in made for name in (*dir(each), *vars(each))}
    classes = [
        c
        for c in ours.__mro__
        if c.__module__.startswith("keras_recompute.") and "seams" not in c.__module__
    ]
    for each in classes:
        hidden = {
            name
            for name in defined(ast.parse(textwrap.dedent(inspect.getsource(each))))
            if is_private(name)
        } & keras_counterpart
        assert not hidden, f"{each.__name__} has {hidden}, and so has Keras's {plain.__name__}"
