"""The documents as such: length and order of the README, its copy on the site, links, changelog,
notes.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
from test_words_of_code import RIDDLES

import keras_recompute as kr
from docs.guide_pages import GUIDES, page

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
# In this order a newcomer looks for them.
ORDER = [
    "# keras-recompute",
    "python3 recompute_lstm.py --checkpoints 7",
    "pip install -r tests/requirements.txt && python3 -m pytest",
    '`pip install "keras-recompute[tensorflow]"`',
    "kr.checkpointed(",
    "model.fit(",
    "kr.plan(",
    "![",
    "| network | checkpoints | PyTorch | JAX | keras.remat | keras-recompute |",
    "## In any function",
    "## What memory a program takes",
    "## Does it fit?",
    "## Limits",
    "## More",
]
CHANGES = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
HIDDEN = {".git", ".venv", "build", "node_modules", ".pytest_cache", ".hypothesis"}


def documents() -> list[Path]:
    """Return the Markdown documents of the repository."""
    found = sorted(ROOT.rglob("*.md"))
    return [path for path in found if not HIDDEN.intersection(path.relative_to(ROOT).parts)]


def site_hooks():
    """Return the module that prepares documents for the site; it can be loaded without mkdocs."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(ROOT / "docs")  # as mkdocs does
        spec.loader.exec_module(module)
    return module


def prose(text: str) -> str:
    """Return a document without its code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the addresses of a document's headings, as GitHub and mkdocs make them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE):
        kept = re.sub(r"[^\w\s-]", "", heading.strip().lower())
        found.add(re.sub(r"\s", "-", kept))
    return found


def links(text: str) -> list[tuple[str, str]]:
    """Return path and anchor of each link that stays in the repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    inside = [target for target in targets if not re.match(r"[a-z]+:", target)]
    return [(path, anchor) for path, _, anchor in (target.partition("#") for target in inside)]


PLAIN = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks" / "notes").glob("*.md")),
    ROOT / "docs" / "guides" / "README.md",
    *GUIDES,
]


def markdown(path: Path) -> str:
    """Return a document as Markdown; a guide as its page."""
    return page(path) if path.suffix == ".py" else path.read_text()


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences_are_read_once(path):
    text = prose(markdown(path))
    assert RIDDLES.findall(text) == []
    # Tables, headings, pictures, links and indented commands cannot be wrapped.
    sentences = [
        line
        for line in text.splitlines()
        if not line.startswith(("|", "#", "![", "<!--", "[", "    "))
    ]
    assert [line for line in sentences if len(line) > 100] == []


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 140
    table = re.search(r"<!-- table:compare -->\n(.*?)<!-- /table", README, re.DOTALL).group(1)
    assert 5 <= len(table.splitlines()) - 2 <= 7
    assert README.count("![") == 1
    limits = README.split("## Limits")[1].split("\n## ")[0]
    assert len(re.findall(r"^\* ", limits, re.MULTILINE)) == 8


def test_the_readme_begins_with_one_sentence():
    sentence = README.split("\n\n")[1]
    assert sentence.endswith(".")
    assert sentence.count(". ") == 0


def test_the_readme_is_in_order():
    places = [README.find(part) for part in ORDER]
    assert -1 not in places
    assert places == sorted(places)


def test_the_home_page_is_the_readme():
    hooks = site_hooks()
    assert hooks.PAGES["README.md"] == "index.md"
    assert not (ROOT / "docs" / "index.md").exists()  # it would stand in its place
    page = hooks.rewrite_links(README, "README.md")

    def without_targets(text: str) -> str:
        return re.sub(r"\]\([^)]*\)", "]", text)

    assert without_targets(page) == without_targets(README)
    targets = [path for path, _ in links(page)]
    assert targets
    for target in targets:
        source = hooks.repository_path(target) if target.endswith(".md") else target
        assert (ROOT / source).exists(), target


def test_links_on_the_site_lead_where_they_lead_in_the_repository():
    hooks = site_hooks()
    cases = [
        ("docs/ipu.md", "[a](../benchmarks/README.md#b)", "[a](measured/index.md#b)"),
        ("docs/ipu.md", "![a](../static/b.png)", "![a](static/b.png)"),
        ("docs/ipu.md", "[a](zoo.md)", "[a](zoo.md)"),
        ("docs/ipu.md", "[a](guides/image_classifier.py)", "[a](guides/image_classifier.md)"),
        ("benchmarks/README.md", "[a](../docs/zoo.md)", "[a](../zoo.md)"),
        ("README.md", "[a](#b) [c](https://d.org/e.md)", "[a](#b) [c](https://d.org/e.md)"),
        ("README.md", "```\n[a](docs/b.md)\n```", "```\n[a](docs/b.md)\n```"),
    ]
    for path, in_the_repository, on_the_site in cases:
        assert hooks.rewrite_links(in_the_repository, path) == on_the_site


def test_a_drawing_of_rooms_is_a_table_on_the_site():
    drawing = "Rooms:\n\n```mermaid\ngraph TD\n    a --> b\n    a --> c\n    b --> c\n    c\n```\n"
    table = "| room | imports |\n|---|---|\n| `a` | `b`, `c` |\n| `b` | `c` |\n"
    assert site_hooks().arrows_as_table(drawing) == f"Rooms:\n\n{table}\n"


def test_the_reference_has_every_name_of_compat():
    page = (ROOT / "docs" / "reference" / "compat.md").read_text()
    for name in kr.compat.__all__:
        assert re.search(rf"{name}$", page, re.MULTILINE), name


@pytest.mark.parametrize(
    "path", [*documents(), *GUIDES], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_no_link_is_broken(path):
    for target, anchor in links(markdown(path)):
        if target.endswith(".ipynb"):  # made when the site is built
            continue
        destination = (path.parent / target).resolve() if target else path
        assert destination.exists(), target
        if anchor and destination.suffix == ".md":
            assert anchor in anchors(destination.read_text()), f"{target}#{anchor}"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_every_document_is_reached_from_the_readme():
    command = ["git", "ls-files", "docs/*.md"]
    tracked = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    guides = {ROOT / name for name in tracked if not name.startswith("docs/reference/")}
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = [target for target, _ in links(page.read_text()) if target]
        todo += [(page.parent / target).resolve() for target in targets]
    assert guides <= seen, guides - seen


def test_the_changelog_has_the_form_of_keepachangelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    for release in releases[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", release), release
    for release in text.split("\n## ")[1:]:
        kinds = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert kinds or release.startswith("[Unreleased]"), release.splitlines()[0]
        assert kinds == [kind for kind in CHANGES if kind in kinds]


def test_every_change_is_one_line_under_its_heading():
    release = kind = None
    for number, line in enumerate((ROOT / "CHANGELOG.md").read_text().splitlines(), 1):
        if line.startswith("## "):
            release, kind = line, None
        elif line.startswith("### "):
            kind = line.removeprefix("### ")
        elif release and re.match(r"\s*[*+-] |\s+\S", line):
            # An entry. An indented line would continue one.
            assert line.startswith("* "), f"line {number} is not an entry of its own: {line}"
            assert kind in CHANGES, f"line {number} is under no heading of a release: {line}"
            assert len(line) <= 100, f"line {number} has {len(line)} columns: {line}"


def test_every_experiment_is_noted_in_full():
    folder = ROOT / "benchmarks" / "notes"
    index = (folder / "README.md").read_text()
    files = sorted(set(folder.glob("*.md")) - {folder / "README.md"})
    assert files
    for file in files:
        assert f"({file.name})" in index
        text = file.read_text()
        questions = re.findall(r"^#+ .*\?$", text, re.MULTILINE)
        for part in ("Expected", "Result", "Machine", "Decision"):
            noted = re.findall(rf"^\* \*\*{part}\*\*: ", text, re.MULTILINE)
            assert len(noted) == len(questions), (file.name, part)


def code_spans(text: str) -> list[str]:
    """Return what stands between backticks in the prose of a document."""
    return re.findall(r"`([^`\n]+)`", prose(text))


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "benchmarks" / "notes").glob("*.md")), ROOT / "ARCHITECTURE.md"],
    ids=lambda path: path.name,
)
def test_files_that_documents_name_exist(path):
    """In full, or below the package, or by a name that one file there has."""
    package = ROOT / "keras_recompute"
    known = {file.relative_to(package).as_posix() for file in package.rglob("*.py")}
    known |= {name.rpartition("/")[2] for name in known}
    named = {span for span in code_spans(path.read_text()) if re.fullmatch(r"[\w/]+\.py", span)}
    assert [name for name in named if name not in known and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", ["passes", "devices"])
def test_passes_that_notes_measure_exist(name):
    from keras_recompute.engine.passes import PASSES

    text = (ROOT / "benchmarks" / "notes" / f"{name}.md").read_text()
    (table,) = re.findall(r"^\| without .*\n(?:\|.*\n)+", text, re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert rows
    assert set(rows) - set(PASSES) == set()
