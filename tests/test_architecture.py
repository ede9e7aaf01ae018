"""The rooms and the arrows between them: who may import whom, who loads TensorFlow, and how large a
file may be.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import rooms
from docs.rooms import imports, module_name, room_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "keras_recompute"

# Room -> the rooms it may import besides itself. The door (``__init__``) may name every room, since
# it loads them lazily.
MAY_IMPORT = {
    "errors": set(),
    "sizes": {"errors"},
    "atomic_files": {"errors"},
    "command_line": {"errors"},
    "op_names": set(),
    "backends": set(),
    "startup_lines": set(),
    "graph_traversal": set(),
    "cluster_tasks": set(),
    "seams": set(),  # the one door to private names of TensorFlow and Keras
    "keras_registration": set(),  # names the modules that it has imported, as the door does
    "planning": {"errors", "sizes"},
    "user_code": {"errors"},
    "engine": {
        "errors",
        "op_names",
        "backends",
        "graph_traversal",
        "seams",
        "user_code",
        "keras_backend",
    },
    "keras_backend": {"backends", "errors", "op_names", "seams", "user_code"},
    "inspection": {"errors", "seams", "user_code", "engine", "keras_backend", "layers"},
    "layers": {"backends", "errors", "op_names", "seams", "user_code", "engine", "keras_backend"},
    "models": {
        "errors",
        "sizes",
        "op_names",
        "graph_traversal",
        "cluster_tasks",
        "seams",
        "planning",
        "user_code",
        "engine",
        "keras_backend",
        "layers",
        "liveness",
    },
    "ipu": {
        "errors",
        "sizes",
        "atomic_files",
        "op_names",
        "seams",
        "engine",
        "layers",
        "models",
        "liveness",
    },
    "liveness": {
        "errors",
        "sizes",
        "atomic_files",
        "op_names",
        "backends",
        "seams",
        "keras_backend",
        "user_code",
    },
    "report": {
        "errors",
        "sizes",
        "atomic_files",
        "command_line",
        "op_names",
        "startup_lines",
        "liveness",
    },
    "fits": {
        "errors",
        "sizes",
        "command_line",
        "seams",
        "planning",
        "keras_backend",
        "user_code",
        "models",
        "liveness",
        "report",
    },
    "doctor": {
        *("errors", "sizes", "command_line", "keras_registration", "seams"),
        *("planning", "user_code", "models", "liveness", "report"),
    },
    "distribute": {"errors", "cluster_tasks", "seams"},
    "compat": {"layers"},
}
# The same for the folders of a room; '' are the files beside them, without its doors.
PARTS_MAY_IMPORT = {
    "engine": {
        "graph": set(),
        "": {"graph"},  # the policies
        "calls": {"graph"},
        "capture": {"graph"},
        "partition": {"", "graph", "capture"},
        "kernels": {"graph"},
        "passes": {"", "graph", "capture", "partition", "kernels"},
        "emit": {"", "graph", "capture", "partition", "passes"},
        "frontend": {"", "graph", "calls", "capture", "partition", "passes", "emit"},
        "scan": {"", "graph", "capture", "partition", "passes", "emit", "frontend"},
        "inspection": {"", "graph", "calls", "partition", "frontend"},
    },
    "models": {
        "keras_graph": set(),
        "execution": {"keras_graph"},
        "classes": {"keras_graph", "execution"},
        "measures": {"keras_graph", "execution", "classes"},
        "plans": {"keras_graph", "execution", "classes", "measures"},
    },
    "ipu": {
        "subprocess_hook": set(),
        "configuration": set(),
        "keras2": set(),
        "layers": set(),
        "optimizers": set(),
        "pipeline": {"configuration"},
        "reports": {"configuration"},
        "queues": {"pipeline", "reports"},
        "models": {"configuration", "pipeline", "reports", "queues"},
        "names": {"configuration", "layers", "optimizers", "pipeline", "models"},
    },
}
# Modules that the example needs beside the public ones, which the door names.
EXAMPLE_IMPORTS = {
    f"keras_recompute.{name}"
    for name in (
        *("atomic_files", "command_line", "keras_backend", "sizes", "startup_lines"),
        *("distribute.cluster", "fits.largest"),
        *("liveness.device_compilers", "liveness.local_device", "liveness.process"),
        *("planning.compile_search", "planning.nested_sections"),
        *("report.files", "report.optional_imports", "report.output", "report.page"),
    )
}
# Files that hold records: what planning and liveness hand to a report.
RECORDS = {
    "planning": {"keras_recompute.planning"},
    "liveness": {
        "keras_recompute.liveness",
        "keras_recompute.liveness.categories",
        "keras_recompute.liveness.device_compilers.catalogue",
        "keras_recompute.liveness.parameters",
        "keras_recompute.liveness.process",
        "keras_recompute.liveness.profile_pop",
        "keras_recompute.liveness.program",
        "keras_recompute.liveness.popvision_reader",
        "keras_recompute.liveness.reconcile",
    },
}
LINES_AT_MOST = 400

SOURCES = sorted(PACKAGE.rglob("*.py"))
EXAMPLE = [ROOT / "recompute_lstm.py", *sorted((ROOT / "lstm_example").rglob("*.py"))]
ALL_FILES = sorted(
    file
    for folder in ("keras_recompute", "lstm_example", "tests", "benchmarks")
    for file in (ROOT / folder).rglob("*.py")
) + sorted(ROOT.glob("*.py"))


def runs_at_import(file: Path) -> set[tuple[type, int]]:
    """Return type and line of what runs when ``file`` is imported: neither in a function nor for
    type checkers alone.
    """
    found, waiting = set(), [ast.parse(file.read_text())]
    while waiting:
        node = waiting.pop()
        found.add((type(node), getattr(node, "lineno", 0)))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        waiting.extend(ast.iter_child_nodes(node))
    return found


def test_every_room_has_its_arrows_declared():
    rooms = {room_of(module_name(file)) for file in SOURCES} - {"", "__main__"}
    assert rooms - MAY_IMPORT.keys() == set(), "a new room needs its arrows here"


def test_the_picture_for_contributors_is_up_to_date():
    assert rooms.main(["--check"]) == 0, "run python3 docs/rooms.py"


def test_every_room_is_described_for_contributors():
    described = re.findall(r"^\| (`.*`) \| ", rooms.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name.strip("`") for line in described for name in line.split(", ")} == set(MAY_IMPORT)


@pytest.mark.parametrize("file", SOURCES, ids=module_name)
def test_arrows_between_rooms_point_one_way(file: Path):
    here = room_of(module_name(file))
    # Doors of the command line, which nothing stands on
    if here == "" or file.name == "__main__.py":
        return
    imported = {
        room_of(name) for _, name in imports(file) if name.split(".")[0] == "keras_recompute"
    }
    against = imported - MAY_IMPORT[here] - {here}
    assert not against, (
        f"{module_name(file)} must not import {sorted(room or 'the door' for room in against)}"
    )


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_every_declared_arrow_is_in_use(room: str):
    assert MAY_IMPORT[room] == rooms.arrows()[room], "a declared arrow that nothing uses"


@pytest.mark.parametrize("room", PARTS_MAY_IMPORT)
def test_arrows_between_the_parts_of_a_room_point_one_way(room: str):
    declared, folder = PARTS_MAY_IMPORT[room], PACKAGE / room
    doors = {folder / "__init__.py", folder / "__main__.py"}
    files = {module_name(file): file for file in folder.rglob("*.py") if file not in doors}
    parts = {
        name: "" if file.parent == folder else file.parent.name for name, file in files.items()
    }
    assert set(parts.values()) == declared.keys(), "a new part needs its arrows here"
    for here, file in files.items():
        against = (
            {parts[name] for _, name in imports(file) if name in parts}
            - declared[parts[here]]
            - {parts[here]}
        )
        assert not against, (
            f"{here} must not import {sorted(part or 'the files beside it' for part in against)}"
        )
    in_use: dict[str, set[str]] = {part: set() for part in declared}
    for here, file in files.items():
        used = {parts[name] for _, name in imports(file) if name in parts}
        in_use[parts[here]] |= used - {parts[here]}
    assert declared == in_use, "a declared arrow that nothing uses"


def test_no_file_comes_back_to_itself_by_its_imports():
    """Imports inside functions and for type checkers count too."""
    files = [*SOURCES, *EXAMPLE]
    loads = {module_name(file): {name for _, name in imports(file)} for file in files}
    # They name what is behind them
    doors = {name for name in loads if (PACKAGE.parent / name.replace(".", "/")).is_dir()}
    waiting = {name: loads[name] & (loads.keys() - doors - {name}) for name in loads.keys() - doors}
    while ready := {name for name, below in waiting.items() if not below & waiting.keys()}:
        waiting = {name: below for name, below in waiting.items() if name not in ready}
    assert not waiting, f"in a circle, or above one: {sorted(waiting)}"


ENGINE = sorted((PACKAGE / "engine").rglob("*.py"))


def test_no_file_of_the_engine_stands_on_itself():
    stands_on = {module_name(file): {name for _, name in imports(file)} for file in ENGINE}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            for below in stands_on[name] & stands_on.keys():
                visit(below, (*above, name))
            done.add(name)

    for name in stands_on:
        visit(name, ())


def test_nothing_but_the_command_imports_a_command_line():
    importers = [
        module_name(f) for f in SOURCES if any(name.endswith("__main__") for _, name in imports(f))
    ]
    assert importers == ["keras_recompute.__main__"]


def test_nothing_imports_the_example():
    """It is not installed with the package."""
    example = {"recompute_lstm", "lstm_example"}
    importers = [
        module_name(file)
        for file in SOURCES
        if example & {name.split(".")[0] for _, name in imports(file)}
    ]
    assert not importers


def test_the_example_uses_the_package_as_other_programs_do():
    """It imports the modules that the door names, and those that are declared, each of them."""
    door = PACKAGE / "__init__.pyi"
    public = {"keras_recompute", *(name for _, name in imports(door) if name.count(".") == 1)}
    imported = {name for file in EXAMPLE for _, name in imports(file)}
    private = {name for name in imported if name.startswith("keras_recompute")} - public
    assert private == EXAMPLE_IMPORTS


@pytest.mark.parametrize("file", [f for f in SOURCES if f.parent.name == "report"], ids=module_name)
def test_report_imports_records_only(file: Path):
    for _, name in imports(file):
        room = room_of(name) if name.startswith("keras_recompute.") else None
        if room in RECORDS:
            assert name in RECORDS[room], (
                f"{module_name(file)} imports {name}, which holds no records"
            )


@pytest.mark.parametrize(
    "file", [f for f in SOURCES if f.parent.name == "liveness"], ids=module_name
)
def test_liveness_loads_no_framework_when_it_is_imported(file: Path):
    frameworks = [
        (node, name)
        for node, name in imports(file)
        if name.split(".")[0] in ("tensorflow", "keras", "jax")
    ]
    # The functions and steps of JAX and PyTorch are imported with them, by the doors alone.
    if file.stem.startswith(("jax_", "torch_")):
        return
    named = "tensorflow_functions", "captured_fit", "allocator", "local_device", "argument_specs"
    if file.stem not in named:
        assert not frameworks, (
            f"{file.name} is none of those that may know TensorFlow, but imports {frameworks[0][1]}"
        )
    at_import = runs_at_import(file)
    early = [name for node, name in frameworks if (type(node), node.lineno) in at_import]
    assert not early, f"{file.name} loads {early} when it is imported"


@pytest.mark.parametrize(
    "module", ["keras_recompute", "keras_recompute.planning", "keras_recompute.liveness"]
)
def test_doors_load_no_framework(module: str):
    loads = (
        f"import sys, {module}; print(sorted({{'tensorflow', 'keras', 'jax'}} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", loads], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n", f"import {module} loads {done.stdout.strip()}"


def test_no_file_is_long():
    long = {
        str(f.relative_to(ROOT)): n
        for f in ALL_FILES
        if (n := len(f.read_text().splitlines())) > LINES_AT_MOST
    }
    assert not long, f"files above {LINES_AT_MOST} lines: {long}"


def test_the_reader_of_imports_sees_what_it_should(tmp_path, monkeypatch):
    """A check that saw nothing would pass: it must see relative, deferred and aliased imports."""
    monkeypatch.setattr(rooms, "ROOT", tmp_path)
    room = tmp_path / "keras_recompute" / "engine"
    room.mkdir(parents=True)
    (room / "trace.py").write_text("")
    file = room / "joint.py"
    file.write_text(
        "from ..models.call_graph import Call\n"
        "from . import trace\n"
        "def late():\n"
        "    import tensorflow.raw_ops as r\n"
        "if TYPE_CHECKING:\n"
        "    from keras_recompute import ipu\n"
    )
    (tmp_path / "keras_recompute" / "ipu").mkdir()
    (tmp_path / "keras_recompute" / "ipu" / "__init__.py").write_text("")
    names = {name for _, name in imports(file)}
    assert names == {
        "keras_recompute.models.call_graph",
        "keras_recompute.engine.trace",
        "tensorflow.raw_ops",
        "keras_recompute.ipu",
    }
    at_import = runs_at_import(file)
    early = {name for node, name in imports(file) if (type(node), node.lineno) in at_import}
    assert early == {"keras_recompute.models.call_graph", "keras_recompute.engine.trace"}
