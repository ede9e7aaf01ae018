"""Resumption from a save, if data, network and versions are the same; plans may differ."""

from __future__ import annotations

from typing import Any

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.keras_backend import TITLES

from .data import Text
from .options import Options
from .saves import Save, last_save

# Options that change what is learnt. Checkpoints, levels, budgets and reports do not.
_SETTINGS = (
    "data",
    "cell",
    "units",
    "features",
    "seq_len",
    "batch_size",
    "gradient_accumulation",
    "learning_rate",
    "seed",
    "validation",
)


def resume_settings(options: Options, text: Text | None) -> dict[str, Any]:
    """Return the options that a resumed run must share with the saved one."""
    settings = {name: getattr(options, name) for name in _SETTINGS}
    return {**settings, "text": text and text.digest()}


def find_save_to_resume(options: Options, text: Text | None) -> Save | None:
    """Return the last save if ``--resume`` asks for it, else None.

    Raises InvalidArgumentError if there is none, if it is another run's, if nothing is left to do,
    and without ``--resume`` if there is one that would be overwritten.
    """
    if options.save is None:
        return None
    save = last_save(options.save, "--resume" if options.resume else "--save")
    if not options.resume:
        if save is None:
            return None
        raise InvalidArgumentError(
            f"--save {options.save}: it has saves of an earlier run; continue it with --resume, or "
            "choose another folder"
        )
    if save is None:
        raise InvalidArgumentError(
            f"--resume: there is no save in {options.save}; leave it out to start a new run"
        )
    if "keras" not in save.state["versions"] or _backend_of(save.state["versions"]) is None:
        raise InvalidArgumentError(
            f"--resume: {save.path} lacks the versions of Keras and of the backend that wrote it; "
            "start a new run"
        )
    for name, now in resume_settings(options, text).items():
        then = save.state["settings"].get(name)
        if then != now:
            raise InvalidArgumentError(
                f"--resume: {save.path} is of a run with {name.replace('_', '-')} {then!s:.80}, "
                f"not {now}; give the same"
            )
    if save.updates >= options.updates:
        raise InvalidArgumentError(
            f"--resume: all {options.updates} updates were done by {save.path} ({save.updates}); "
            "raise --epochs to continue"
        )
    return save


def check_versions(save: Save, versions: dict[str, str]) -> None:
    """Raise InvalidArgumentError if another Keras or backend than this one wrote ``save``.

    That may be another backend altogether, but not another version of the same.
    """
    for name, then in save.state["versions"].items():
        now = versions.get(name)
        is_of_another = name in TITLES and now is None
        if name != "python" and now != then and not is_of_another:
            raise InvalidArgumentError(
                f"--resume: {save.path} was written with {name} {then!s:.80}, and this is "
                f"{now}; install {name} {then!s:.80}"
            )


def describe_resumption(save: Save, versions: dict[str, str]) -> str:
    """Return as text from where a run goes on, and how near to an undisturbed run."""
    before, now = _backend_of(save.state["versions"]), _backend_of(versions)
    nearly = f", written on {before}: on {now} losses are the same to about 1e-4"
    return f"going on from {save.path}{'' if before == now else nearly}"


def _backend_of(versions: dict[str, str]) -> str | None:
    """Return the name of the backend among ``versions``, as it is written."""
    return next((title for name, title in TITLES.items() if name in versions), None)
