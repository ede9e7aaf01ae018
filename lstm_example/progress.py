"""Progress of a run: a live bar on a terminal, a line for each update elsewhere.

Runs on Python 3.8.
"""

from __future__ import annotations

from typing import Any

from keras_recompute.sizes import format_bytes


class Progress:
    """Prints lines, and on a terminal a bar of the updates done; prints nothing if ``quiet``."""

    def __init__(self, *, quiet: bool) -> None:
        self._is_quiet = quiet
        self._live: Any = None
        self._task: Any = None

    def say(self, text: str) -> None:
        """Print a line, above the live bar."""
        if self._is_quiet:
            return
        if self._live is None:
            print(text, flush=True)
        else:
            self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, updates: int, *, done: int) -> None:
        """Show a live bar of ``updates`` in all, if there is a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Live

        console = Console()
        # In a file or a pipe, a line per update is printed instead.
        if self._is_quiet or not console.is_terminal:
            return
        columns = (
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )
        # Transient: at the end the bar gives way to the results.
        self._live = Live(*columns, console=console, transient=True)
        self._task = self._live.add_task("compiling", total=updates, completed=done)
        self._live.start()

    def update(self, done: int, updates: int, figures: dict[str, Any]) -> None:
        """Show that ``done`` of ``updates`` are done, with their figures."""
        words = describe_figures(figures)
        if self._live is None:
            bits = words["bits"] and f" ({words['bits']})"
            self.say(f"update {done}/{updates}  {words['loss']}{bits}  {words['step']}")
        else:
            shown = "  ".join(filter(None, words.values()))
            self._live.update(self._task, completed=done, description=shown)

    def stop(self) -> None:
        """Remove the live bar and restore the cursor. May be called again, from any thread."""
        if self._live is not None:
            self._live.stop()


def describe_figures(figures: dict[str, Any]) -> dict[str, str]:
    """Return the figures of an update as text; empty for a figure that is None.

    They are ``loss``, ``bits_per_byte``, ``step_seconds``, ``tokens_per_second`` and
    ``resident_bytes``, the memory of the process.
    """
    names = "bits_per_byte", "tokens_per_second", "resident_bytes"
    bits, tokens, resident = map(figures.get, names)
    seconds = figures["step_seconds"]
    step = f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
    return {
        "loss": f"loss {figures['loss']:.4f}",
        "bits": "" if bits is None else f"{bits:.3f} bits per byte",
        "step": f"{step} per step",
        "tokens": "" if tokens is None else f"{tokens:,.0f} tokens per second",
        "memory": "" if resident is None else format_bytes(resident),
    }
