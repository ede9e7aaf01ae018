"""Look at reports on memory.

    PROGRAM show run/               figures, curve and largest buffers of a report
    PROGRAM show run/ --device l4   the same, compared with the memory of that device
    PROGRAM show runs/              one line for each report in the folders inside
    PROGRAM compare plain/ saved/   what changed from the first report to the second
    PROGRAM compare plain/ saved/ --figure both.png    the same as a picture
    PROGRAM top run/ --by layer     what is alive at the peak, or at --step
    PROGRAM open run/               a page in the browser; two reports: over each other
    PROGRAM export run/ --to html   that page as liveness.html
    PROGRAM export run/ --to csv    steps.csv and buffers.csv
    PROGRAM export run/ --to trace  a Chrome trace, for ui.perfetto.dev
    PROGRAM export run/ --to xprof  a log folder for `xprof DIR` or TensorBoard
    PROGRAM export run/ --to pop    a profile.pop, as the IPU stand-in writes it

A report is a liveness.json, a profile.pop (one of the Poplar SDK needs the SDK's pva), a folder
that holds one, or a serialized program (*.hlo_proto.pb). Tables keep to the width of the terminal
(COLUMNS); piped output has no lines, no colours and ASCII signs only, where the names have.
Files go into the folder of the report, or to --output; one that exists is replaced with --force
only. XProf needs the serialized program: a report written with
`write_report(..., serialized=...)` keeps it. The page needs plotly and jinja2.
Exit code: 0 done, 1 where standard output cannot be written, 2 for a report that cannot be read,
or a wrong argument.
"""

from __future__ import annotations

import argparse
import tempfile
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Callable, Sequence

from rich.console import Console

from ..atomic_files import ensure_folder
from ..command_line import Parser, path_to, whole_number
from ..errors import InvalidArgumentError, RecomputeError, ReportError
from ..liveness.device_compilers.catalogue import find_device
from ..liveness.profile_pop import POP_NAME, write_profile_pop
from .diff import GROUPINGS
from .exports import STEPS_NAME, TRACE_NAME, export_csv, export_trace, export_xprof
from .figures import comparison_figure
from .loading import Report, read_report, read_reports, read_serialized
from .output import print_error, watch_output
from .page import PAGE_NAME, write_page
from .tables import print_buffers, print_comparison, print_groups, print_overview
from .text import print_liveness

DONE, UNHEARD, FAILED, INTERRUPTED = 0, 1, 2, 130


def main(
    argv: Sequence[str] | None = None,
    *,
    console: Console | None = None,
    program: str = "python3 -m keras_recompute.liveness",
    more: str = "",
) -> int:
    """Run one command and return its exit code; errors are one line on standard error.

    ``program`` is the command line in front of the command. ``more`` is added to the help after the
    list of commands.
    """
    with watch_output() as output:
        code = _run(argv, console, program, more)
    if output.error is None or isinstance(output.error.__cause__, BrokenPipeError):
        return code  # a broken pipe: the reader wants no more, as in `... | head`
    print_error(f"{program}: {output.error}")
    return code or UNHEARD


def _run(argv: Sequence[str] | None, console: Console | None, program: str, more: str) -> int:
    try:
        arguments = _parser(program, more).parse_args(argv)
        run: Callable[[argparse.Namespace, Console], None] = arguments.run
        run(arguments, console or Console())
    except SystemExit as done:  # --help, or a wrong argument
        return done.code if isinstance(done.code, int) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except RecomputeError as error:
        return _failed(program, str(error))
    except MemoryError:
        return _failed(program, "this machine lacks the memory to read or show that")
    except OSError as error:  # of a path that no file can have, mostly
        return _failed(program, f"{error.filename or 'a file'!r}: {error.strerror or error}")
    return DONE


def _failed(program: str, reason: str) -> int:
    print_error(f"{program}: {' '.join(reason.split())}")
    return FAILED


def _parser(program: str, more: str) -> argparse.ArgumentParser:
    text = (
        (__doc__ or "")
        .replace("PROGRAM", program)
        .replace("\n\nA report is", f"{more}\n\nA report is")
    )
    parser = Parser(program, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    report = path_to("report")
    file = path_to("file")
    folder = path_to("folder")
    count = whole_number(0)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    show = commands.add_parser("show", help="figures, curve and largest buffers")
    show.add_argument("report", type=report, help="a report, or a folder of folders with reports")
    show.add_argument(
        "--device", metavar="NAME", help="compare it with the memory of this device, such as h100"
    )
    show.add_argument(
        "--buffers",
        type=count,
        default=10,
        metavar="N",
        help="list the N largest buffers at the peak (default: 10)",
    )
    show.set_defaults(run=_show)

    compare = commands.add_parser("compare", help="changes between two reports")
    compare.add_argument("before", type=report, metavar="A")
    compare.add_argument("after", type=report, metavar="B")
    compare.add_argument(
        "--by", choices=GROUPINGS, default="category", help="group what is alive at the peaks"
    )
    compare.add_argument(
        "--rows",
        type=count,
        default=10,
        metavar="N",
        help="list the N largest changes (default: 10)",
    )
    compare.add_argument(
        "--figure", type=file, metavar="FILE", help="also draw both curves on one scale, as a PNG"
    )
    compare.add_argument("--force", action="store_true", help="replace the figure if it exists")
    compare.set_defaults(run=_compare)

    top = commands.add_parser("top", help="the largest buffers alive at a step")
    top.add_argument("report", type=report)
    top.add_argument(
        "--step",
        type=count,
        metavar="STEP",
        help="a program step, from 0 (default: that of the peak)",
    )
    top.add_argument("--by", choices=GROUPINGS, help="add up buffers instead of listing them")
    top.add_argument(
        "--rows",
        type=count,
        default=10,
        metavar="N",
        help="list N rows; the rest is added up (default: 10)",
    )
    top.set_defaults(run=_top)

    export = commands.add_parser("export", help="files for other tools")
    export.add_argument("report", type=report)
    export.add_argument("--to", choices=sorted(FORMATS), required=True, help="the format")
    export.add_argument(
        "--output",
        type=folder,
        metavar="DIR",
        help="folder for the files (default: that of the report)",
    )
    export.add_argument("--force", action="store_true", help="replace files that exist")
    export.set_defaults(run=_export)

    page = commands.add_parser("open", help="a page in the browser")
    page.add_argument("report", type=report, metavar="A")
    page.add_argument(
        "other", type=report, metavar="B", nargs="?", help="a second report, shown over the first"
    )
    page.add_argument(
        "--output",
        type=file,
        metavar="FILE",
        help="file for the page (default: in a new temporary folder)",
    )
    page.add_argument("--force", action="store_true", help="replace the file if it exists")
    page.add_argument(
        "--no-browser",
        action="store_true",
        help="write the page and print its path, without a browser",
    )
    page.set_defaults(run=_open)
    return parser


def _show(arguments: argparse.Namespace, console: Console) -> None:
    reports = read_reports(arguments.report)
    device = None if arguments.device is None else find_device(arguments.device)
    if len(reports) == 1:
        program = reports[0].program
        if device is not None:
            program = replace(program, capacity_bytes=device.memory_bytes)
        print_liveness(program, console, buffers=arguments.buffers)
    elif device is not None:
        raise InvalidArgumentError(
            f"--device takes one report, and {str(arguments.report)!r} has {len(reports)}: name "
            "one of them"
        )
    else:
        print_overview([(r.label, r.program) for r in reports], console)


def _compare(arguments: argparse.Namespace, console: Console) -> None:
    before, after = read_report(arguments.before), read_report(arguments.after)
    labelled = (f"A: {before.label}", before.program), (f"B: {after.label}", after.program)
    # Before anything is printed, so that a refusal is the only output.
    if arguments.figure:
        _refuse_to_replace(arguments.figure, arguments.force)
    print_comparison(*labelled, console, by=arguments.by, rows=arguments.rows)
    if arguments.figure:
        comparison_figure(labelled, arguments.figure)
        console.print(str(arguments.figure), highlight=False, markup=False, soft_wrap=True)


def _top(arguments: argparse.Namespace, console: Console) -> None:
    program = read_report(arguments.report).program
    step = program.peak_step if arguments.step is None else arguments.step
    if arguments.by:
        print_groups(program, console, step=step, by=arguments.by, rows=arguments.rows)
    else:
        print_buffers(program, console, step=step, rows=arguments.rows)


def _export(arguments: argparse.Namespace, console: Console) -> None:
    report = read_report(arguments.report)
    folder = arguments.output or report.path.parent
    name, write = FORMATS[arguments.to]
    _refuse_to_replace(folder / name, arguments.force)
    for path in write(report, folder):
        console.print(str(path), highlight=False, markup=False, soft_wrap=True)


def _open(arguments: argparse.Namespace, console: Console) -> None:
    reports = [
        read_report(path) for path in (arguments.report, arguments.other) if path is not None
    ]
    # The folder stays, since the browser loads the page after this command has ended.
    path = arguments.output or Path(tempfile.mkdtemp(prefix="liveness-"), PAGE_NAME)
    _refuse_to_replace(path, arguments.force)
    write_page([(r.label, r.program) for r in reports], path)
    console.print(str(path), highlight=False, markup=False, soft_wrap=True)
    if not arguments.no_browser:
        webbrowser.open(path.resolve().as_uri())


def _refuse_to_replace(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise ReportError(
            f"{str(path)!r} exists already: overwrite it with --force, or choose another place "
            "with --output"
        )


def _write_page(report: Report, folder: Path) -> list[Path]:
    return [write_page([(report.label, report.program)], ensure_folder(folder) / PAGE_NAME)]


def _write_trace(report: Report, folder: Path) -> list[Path]:
    return [export_trace(report.program, ensure_folder(folder) / TRACE_NAME)]


def _write_pop(report: Report, folder: Path) -> list[Path]:
    write_profile_pop(report.program, folder / POP_NAME)
    return [folder / POP_NAME]


def _write_xprof(report: Report, folder: Path) -> list[Path]:
    return export_xprof(report.program.name, read_serialized(report), folder)


# Format -> the file that must not exist yet in the folder, and the function that writes.
FORMATS: dict[str, tuple[str, Callable[[Report, Path], list[Path]]]] = {
    "html": (PAGE_NAME, _write_page),
    "csv": (STEPS_NAME, lambda report, folder: export_csv(report.program, folder)),
    "trace": (TRACE_NAME, _write_trace),
    "xprof": ("plugins", _write_xprof),
    "pop": (POP_NAME, _write_pop),
}
