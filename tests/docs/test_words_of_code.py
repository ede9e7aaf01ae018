"""The words of the code: names of modules, first sentences, phrases, and dense statements.

They are held for the rooms in ``ROOMS``, which are all rooms of the package, and for the example.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, EXAMPLE = ROOT / "keras_recompute", "lstm_example"
# '' are the modules directly in the package.
ROOMS = (
    *("", "compat", "distribute", "engine", "ipu", "layers"),
    *("liveness", "models", "planning", "report", "seams", EXAMPLE),
)
WORDS_AT_MOST = 25
# Names that were replaced by nouns of the field: see the history of the module in their place.
REPLACED = {
    "": "files phases processes registration walks",
    "distribute": "joining launch meeting watching",
    "engine": "advice ambient as_traced attributes boundaries by_value decisions eager examine "
    "frozen gradient higher joint kinds left_behind levels listing loop_pair loop_roles lower "
    "marks nest offload once origin outline pieces poolings products programs splice split "
    "stateless undifferentiable windows writing",
    EXAMPLE: "choosing generating log outputs plans resuming room session stopping sweep workers",
    "ipu": "absent accumulate children dealing entered extension keras2_ways programs "
    "refused_on_use replicas spread unsupported workers",
    "layers": "by_hand same_class",
    "liveness": "columns compile_xla heap local naming read_popvision read_xla unfolded",
    "models": "alike aside batch beside blocks candidates clones distribute equal execute fixed "
    "graph held inline listing measure placed placement plan_layers planned predicted proof "
    "repeats replicas scratch twins workers",
    "planning": "binomial exhaustive mixed multilevel optimal recurrent reference staircase twice "
    "uniform within",
    "report": "changes finding packages",
    "seams": "adapted bodies callers calls made recurrent replicas traced vectorized",
}
# Sentences with these have to be read twice, or say "one" where a noun belongs.
RIDDLES = re.compile(
    r"\b(of which|of whom|those that|those whose|as ever|nobody|somebody|whoever|without a word"
    r"|tells|hung on|at hand|anew|for ever)\b",
    re.IGNORECASE,
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def files_of(room: str) -> list[Path]:
    """Return the files of a room."""
    if room == EXAMPLE:
        return sorted((ROOT / EXAMPLE).rglob("*.py"))
    return sorted((PACKAGE / room).rglob("*.py") if room else PACKAGE.glob("*.py"))


FILES = [file for room in ROOMS for file in files_of(room)]


def name_of(file: Path) -> str:
    """Return the path of ``file`` in the repository."""
    return file.relative_to(ROOT).as_posix()


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of a module and of all that is defined in it."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "the module"), text


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring; a colon or an empty line ends it too."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.:?!])\s", paragraph)[0]


def prose(text: str) -> str:
    """Return a docstring without its examples."""
    return text.partition("Examples:\n")[0]


def comments(source: str) -> Iterator[str]:
    """Yield the comments of a file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement, but not of the statements inside it."""
    waiting = list(ast.iter_child_nodes(statement))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            yield node
        if not isinstance(node, ast.stmt):
            waiting.extend(ast.iter_child_nodes(node))


def dense_lines(tree: ast.Module) -> list[int]:
    """Return the lines of statements with more than one comprehension."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            count = sum(isinstance(each, COMPREHENSIONS) for each in expressions(node))
            if count > 1:
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_module_has_a_docstring(file):
    assert ast.get_docstring(ast.parse(file.read_text()))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_first_sentences_are_short(file):
    sentences = {
        name: first_sentence(text) for name, text in docstrings(ast.parse(file.read_text()))
    }
    assert {n: s for n, s in sentences.items() if len(s.split()) > WORDS_AT_MOST} == {}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_sentences_are_read_once(file):
    source = file.read_text()
    texts = [prose(text) for _, text in docstrings(ast.parse(source))]
    found = RIDDLES.findall("\n".join([*texts, *comments(source)]))
    assert found == []


@pytest.mark.parametrize("room", REPLACED)
def test_replaced_names_do_not_come_back(room):
    names = {file.stem for file in files_of(room)}
    names |= {file.parent.name for file in files_of(room)} - {room}
    assert names & set(REPLACED[room].split()) == set()


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_statement_has_at_most_one_comprehension(file):
    assert dense_lines(ast.parse(file.read_text())) == []


def test_the_readers_see_what_they_should():
    source = (
        'x = [[b for b in a] for a in y]\ndef f():\n    "One. Two."\n    return [a for a in y]\n'
    )
    tree = ast.parse(source)
    assert dense_lines(tree) == [1]
    assert list(docstrings(tree)) == [("f", "One. Two.")]
    assert first_sentence("One\nline. Two.") == "One line."
    assert RIDDLES.search("a text of which little is read")
    assert list(comments("x = 1  # why\n")) == ["# why"]
