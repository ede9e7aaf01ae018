"""The page of the zoo on Keras's other backends, ``docs/zoo-backends.md``, from stored rows."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

MIB = 2**20
BARS = {"jax": 0.6, "torch": 0.5}  # of the plain model's memory
SECONDS_BAR = 1.35  # of the plain model's seconds
DEVICES = {"cpu": "CPU", "h100": "H100", "v5e": "v5e"}
MODELS = 31
FAILS = "fails"

HEAD = """\
# The zoo on JAX and PyTorch

The models of [the zoo](zoo.md) with random weights, trained by Keras's own step on its other
backends: plain, with every layer in `keras.RematScope(mode="full")`, and with checkpoints. `every=`
is about the square root of the number of layers; of KerasHub's small models, which have six blocks,
it is 2. Where blocks stand inside one layer they are recomputed by `layers=`. A row is made by
`benchmarks/zoo_backends.py`.
"""
JAX = """\
## JAX

Temporaries of the whole step with Adam, in MiB, by the compiler. For devices the batch is 16 times
as large, since small activations stay on the chip of a TPU. Even so all of MobileNetV3Small's do,
and its figures for a v5e are those of other buffers. On a device an activation of VGG16's first
block has 128 MiB, and the gradients of its second convolution take three such arrays. For all
blocks of DebertaV3 XLA makes 80 MiB at the start of a step on an H100: indices, and the zeros that
gradients of gathers are added to. The leanest plan is that of `kr.plan(memory_budget="smallest")`
for the CPU or the device. It tries few distances between checkpoints, so `every=` may take a little
less. RematScope replays each layer by itself, as `every=1` does: on a device that takes less than
longer sections do. Losses of three updates are compared with the plain model's, relative to them.
Rounding decides many an update of a network with batch norm and small images: gradients of the
plain ResNet50 are 0.2 from its own in float64 ([the zoo](zoo.md)). On a CPU XLA makes the gradient
of a depthwise kernel as if it were dense: two buffers of 31.6 MiB are most of the plain
MobileNetV2's temporaries. First steps trace, compile and run once, and later ones are the faster of
two, on {processor}, which did other work as well.
"""
JAX_COLUMNS = (
    "model | losses differ, first / three: RematScope, `every=`, leanest | CPU: plain, "
    "RematScope, `every=`, leanest | H100: the same | v5e: the same | first step, s: the same | "
    "later steps, over plain's: RematScope, `every=`, leanest"
)
HALF = """\
### Plans for half of the plain step

`kr.plan` was asked for half of the plain step's peak, weights included. The plan, or that for the
smallest budget which a refusal names, was compiled once more. All are shares of the plain peak.
"""
HALF_COLUMNS = "model | budget | peak of the plan | holds"
TORCH = """\
## PyTorch

The step without jit, on {processor}, which did other work as well. By hand is
`torch.utils.checkpoint.checkpoint_sequential` on the same layers, where the model is a chain of
parts with one tensor between. Losses of three updates with SGD, and all variables behind them,
statistics included, are compared with the plain model's. Saved is what is alive between the
forward and the backward pass, and peaks are those of all temporaries, both of the record on fake
tensors. With checkpoints each weight is updated in the backward pass. Elsewhere all gradients wait
for the end of it, and Keras's update with Adam holds three more copies of all weights for a while.
RematScope wraps the model as well as each layer, keeps nothing, and replays all of it. Seconds are
of an update with SGD, over the plain model's, in turns and in one thread. A step that runs all of
the forward pass twice takes at least one forward pass longer. Ours keeps the last sections where
that takes about what the replay of another one does. Load on the machine changed between models.
"""
TORCH_COLUMNS = (
    "model | largest difference of losses / of variables: RematScope, by hand, ours | saved, MiB: "
    "plain, RematScope, by hand, ours | peak with SGD, MiB: the same | peak with Adam, MiB: plain, "
    "ours | seconds over plain's: a forward pass more, RematScope, by hand, ours"
)
OURS = {"every": "`every=`", "leanest": "leanest plan"}
JAX_WAYS = ("plain", "remat", "every", "leanest")
TORCH_WAYS = ("plain", "remat", "hand", "every")


def page(found: dict[str, dict[str, Any]]) -> str:
    """Return the text of the page from what is stored of each backend."""
    jax, torch = found["jax"], found["torch"]
    of_jax, of_torch = working(jax["rows"]), working(torch["rows"])
    halves = {name: row["half"] for name, row in of_jax.items() if "half" in row}
    parts = [HEAD, JAX.format(**jax), *jax_summary(of_jax), table(JAX_COLUMNS, jax_line, of_jax)]
    if halves:
        parts += [HALF, table(HALF_COLUMNS, half_line, halves)]
    parts += [TORCH.format(**torch), *torch_summary(of_torch), refusals(torch["rows"])]
    parts += [table(TORCH_COLUMNS, torch_line, of_torch)]
    return "\n".join(wrapped(line) for part in parts for line in paragraphs(part))


def paragraphs(text: str) -> list[str]:
    """Return the lines of a table or a list, and other paragraphs as one line each."""
    lines: list[str] = []
    for line in text.splitlines():
        goes_on = lines and lines[-1] and line and line[0] not in "*|#" and lines[-1][0] not in "|#"
        if goes_on:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return [*lines, ""]


def wrapped(line: str) -> str:
    """Return a paragraph in lines of at most 100 columns; a row of a table as it is."""
    if line.startswith("|"):
        return line
    indent = "  " if line.startswith("*") else ""
    return textwrap.fill(line, 100, subsequent_indent=indent, break_on_hyphens=False)


def working(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the rows whose plain model was measured."""
    return {name: row for name, row in rows.items() if "error" not in row.get("plain", row)}


def refusals(rows: dict[str, Any]) -> str:
    """Return a sentence on each model that cannot be built on the backend."""
    refused = {name: row["error"] for name, row in rows.items() if "error" in row}
    return "".join(f"{name} is refused by Keras: “{said}”\n" for name, said in refused.items())


def table(columns: str, line: Callable[[str, Any], str], rows: dict[str, Any]) -> str:
    """Return a table in Markdown."""
    head = [f"| {columns} |", "|" + "---|" * (columns.count(" | ") + 1)]
    return "\n".join([*head, *(line(name, row) for name, row in rows.items())])


def cells(row: dict[str, Any], ways: Iterable[str], text: Callable[[Any], str]) -> str:
    """Return the cell that says ``text`` of each way; where one failed, that it does."""
    said = []
    for way in ways:
        figures = row[way]
        failed = "" if figures.get("error") == "not a chain" else FAILS
        said.append(failed if "error" in figures else text(figures))
    return ", ".join(each for each in said if each)


def size(size_bytes: Any) -> str:
    """Return a size in MiB, or that its program failed, or that there was none."""
    if size_bytes is None:
        return "not searched"
    return f"{size_bytes / MIB:.1f}" if isinstance(size_bytes, int) else FAILS


def jax_line(name: str, row: dict[str, Any]) -> str:
    """Return the line of a model on JAX."""

    def differs(figures: dict[str, Any]) -> str:
        all_of_them = loss_differences(figures, row["plain"])
        first_and_all = all_of_them[0], max(all_of_them)
        return " / ".join(f"{each:.0e}".replace("0e+00", "0") for each in first_and_all)

    said = [name, cells(row, JAX_WAYS[1:], differs)]
    for device in DEVICES:
        if device in row["plain"]["temporaries"]:
            said.append(cells(row, JAX_WAYS, lambda f, d=device: size(f["temporaries"].get(d))))
        else:
            said.append("not compiled")
    said.append(cells(row, JAX_WAYS, lambda figures: f"{figures['first']:.1f}"))
    seconds = row["plain"].get("step")
    if seconds is None:
        said.append("not timed")
    else:
        said.append(cells(row, JAX_WAYS[1:], lambda f: f"{f['step'] / seconds:.2f}"))
    return f"| {' | '.join(said)} |"


def loss_differences(figures: dict[str, Any], plain: dict[str, Any]) -> list[float]:
    """Return the differences between losses, relative to the plain ones."""
    pairs = zip(figures["losses"], plain["losses"])
    return [abs(ours - wanted) / abs(wanted) for ours, wanted in pairs]


def half_line(name: str, half: dict[str, Any]) -> str:
    """Return the line of a plan for half of the plain peak."""
    if "error" in half:
        return f"| {name} | 0.50 | {half['error']} | |"
    budget = f"{half['budget']:.2f}" + (", the floor of a refusal" if half["refused"] else "")
    holds = "yes" if half["holds"] else "no"
    return f"| {name} | {budget} | {half['peak']:.2f} | {holds} |"


def torch_line(name: str, row: dict[str, Any]) -> str:
    """Return the line of a model on PyTorch."""

    def differs(figures: dict[str, Any]) -> str:
        return " / ".join(f"{v:.0e}".replace("0e+00", "0") for v in figures["differences"])

    said = [name, cells(row, TORCH_WAYS[1:], differs)]
    for key in ("saved", "peak"):
        said.append(cells(row, TORCH_WAYS, lambda figures, key=key: size(figures["sgd"][key])))
    said.append(cells(row, ("plain", "every"), lambda figures: size(figures["adam"]["peak"])))
    seconds = row["plain"]["seconds"]
    again = f"{1 + row['plain']['forward'] / seconds:.2f}"
    slower = cells(row, TORCH_WAYS[1:], lambda f: f"{f['seconds'] / seconds:.2f}")
    said.append(f"{again}, {slower}")
    return f"| {' | '.join(said)} |"


def jax_summary(rows: dict[str, Any]) -> list[str]:
    """Return the sentences on all rows of JAX."""
    ratios: dict[str, dict[str, float]] = {}
    above = []
    for name, row in rows.items():
        for device, plain in row["plain"]["temporaries"].items():
            for way in OURS:
                ours = row[way].get("temporaries", {}).get(device)
                if isinstance(ours, int) and isinstance(plain, int):
                    ratios.setdefault(f"{way} {device}", {})[name] = ours / plain
                    theirs = row["remat"].get("temporaries", {}).get(device)
                    if isinstance(theirs, int) and theirs < ours and is_right(row):
                        above.append(f"{name} ({way}, {device})")
    said = [measured(rows, "JAX")]
    for where, each in ratios.items():
        way, _, device = where.partition(" ")
        said.append(f"* {OURS[way]}, {DEVICES[device]}: {spread(each, BARS['jax'])}")
    for way, title in OURS.items():
        timed = {name: row for name, row in rows.items() if "step" in row[way]}
        steps = {name: row[way]["step"] / row["plain"]["step"] for name, row in timed.items()}
        if steps:
            said.append(f"* seconds of later steps, {title}: {spread(steps, SECONDS_BAR)}")
    said.append(f"* less in RematScope than with ours: {', '.join(above) or 'none'}")
    said.append(f"* temporaries with `every=1` over those in RematScope: {of_each_layer(rows)}")
    return ["\n".join([*said, failures(rows), ""])]


def of_each_layer(rows: dict[str, Any]) -> str:
    """Return what checkpoints behind all layers take, over RematScope, which replays each too."""
    said = []
    for name, row in rows.items():
        if "each" in row and is_right(row):
            ratios = []
            for device, title in DEVICES.items():
                ours, theirs = (row[way]["temporaries"].get(device) for way in ("each", "remat"))
                if isinstance(ours, int) and isinstance(theirs, int):
                    ratios.append(f"{ours / theirs:.2f} ({title})")
            said.append(f"{name} {', '.join(ratios)}")
    return "; ".join(said)


def is_right(row: dict[str, Any]) -> bool:
    """Whether ``keras.RematScope`` has the first loss of the plain model."""
    return loss_differences(row["remat"], row["plain"])[0] < 1e-6


def torch_summary(rows: dict[str, Any]) -> list[str]:
    """Return the sentences on all rows of PyTorch."""
    said = [measured(rows, "PyTorch")]
    ours = {name: row for name, row in rows.items() if "error" not in row["every"]}
    for key, title in {"saved": "saved", "peak": "peak with SGD"}.items():
        shares = {n: r["every"]["sgd"][key] / r["plain"]["sgd"][key] for n, r in ours.items()}
        said.append(f"* {title}, ours: {spread(shares, BARS['torch'])}")
    again = [1 + row["plain"]["forward"] / row["plain"]["seconds"] for row in rows.values()]
    least = f"{statistics.median(again):.2f} in the median, {max(again):.2f} at most"
    said.append(f"* seconds, plain and one forward pass more: {least}")
    for way, title in {"every": "ours", "hand": "by hand", "remat": "RematScope"}.items():
        slower = {}
        for name, row in rows.items():
            if "seconds" in row[way]:
                slower[name] = row[way]["seconds"] / row["plain"]["seconds"]
        if slower:
            said.append(f"* seconds, {title}: {spread(slower, SECONDS_BAR)}")
    for way, title in {"every": "ours", "hand": "by hand", "remat": "RematScope"}.items():
        differences = {n: r[way]["differences"] for n, r in rows.items() if "error" not in r[way]}
        exact = sum(not any(each) for each in differences.values())
        said.append(f"* equal to the bit, {title}: {exact} of {len(differences)}")
    return ["\n".join([*said, failures(rows), ""])]


def measured(rows: dict[str, Any], backend: str) -> str:
    """Return a sentence on how many models there are."""
    count = f"{len(rows)} of {MODELS} models"
    return f"{count} were measured on {backend}. Shares of the plain model:\n"


def spread(shares: dict[str, float], bar: float) -> str:
    """Return the median and the most of shares of the plain model, and those above a bar."""
    above = [f"{name} {share:.2f}" for name, share in shares.items() if share > bar]
    median, most = statistics.median(shares.values()), max(shares.values())
    said = f"{median:.2f} in the median, {most:.2f} at most"
    return said + (f"; above {bar}: {', '.join(above)}" if above else "")


def failures(rows: dict[str, Any]) -> str:
    """Return a sentence on where ``keras.RematScope`` fails, with the reasons that Keras gives."""
    reasons: dict[str, list[str]] = {}
    for name, row in rows.items():
        if "error" in row["remat"]:
            reason = row["remat"]["error"].partition(". ")[0]
            reasons.setdefault(reason, []).append(name)
    if not reasons:
        return "\nRematScope works on all of them."
    told = [f"of {', '.join(names)}: “{reason}”" for reason, names in reasons.items()]
    count = sum(map(len, reasons.values()))
    return f"\nRematScope fails on {count}: {'; '.join(told)}."
