"""The chain: papermill runs the numbered notebooks, one after the other, into a run's folder.

A finished notebook is stamped with a hash of its code, the recipe, the package and the notebooks before it;
a stamped one is skipped, so the same command after a kill goes on where the last one stopped. Only one chain at a time
writes to a run's folder.
"""

import hashlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import papermill
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError
from tqdm import tqdm
from traitlets.config import Config

from . import folder
from .errors import UserError
from .recipe import Recipe
from .sources import ROOT, code_hash, meaning_hash

CHAIN = ROOT / "notebooks"
CHAPTERS = 5  # the notebooks after these go further
OF_ADAPTERS = ("evaluations/warm-start.{}.*", "evaluations/checkpoint-*.{}.*")
TRAINED = ("training_log.jsonl", "rollouts.html", "teacher.sqlite*", "results.*", "teacher")  # 09 copies its adapters
KEPT = {  # what a notebook leaves in a run's folder and would find again, and what no longer holds without it
    "02_baseline_evaluation": ("evaluations/base.validation.*", "evaluations/base.test.*"),
    "03_reward_design": (
        *("checkpoints", "warm_start_log.jsonl", *TRAINED, *(pattern.format("*") for pattern in OF_ADAPTERS)),
        *("evaluations/base.train.*", "evaluations/base.validation-8-at-0.7.*"),
    ),
    "04_grpo_training": (
        *("checkpoints/checkpoint-*", "checkpoints/completions", *TRAINED, OF_ADAPTERS[1].format("*")),
    ),
    "05_checkpoint_evaluation": (
        *(pattern.format(split) for pattern in OF_ADAPTERS for split in ("validation", "test")),
        "results.*",
    ),
    "06_grpo_from_scratch": ("from_scratch",),
    "07_reward_hacking": ("reward_hacking",),
    "08_dpo_after_grpo": ("dpo",),
    "09_teacher_reward": ("teacher",),
}
OTHERS = re.compile(r"site-packages|/lib/python3|/grpo_utils/")  # files of a traceback that no recipe imports
SECONDS = 15.0  # between two lines of a notebook that are passed on
KERNEL = {
    "transport": "ipc",  # no port that other users of the machine can reach
    "shutdown_wait_time": 600.0,  # seconds, of which an interrupted kernel gets half to end and save a training step
}


class NotebookError(UserError):
    """A notebook failed. Its text names the notebook, the cell and the failing cell's message."""


class LockedKernel(AsyncKernelManager):
    """Hands a kernel the lock of its run: if the chain is killed, the folder stays locked until the kernel ends too."""

    async def start_kernel(self, **kwargs: Any) -> None:  # type: ignore[override], jupyter_client binds it late
        environment = {**os.environ, folder.HEADLESS: "1"}
        await super().start_kernel(pass_fds=folder.lock_descriptors(), env=environment, **kwargs)


class Relay:
    """A file that passes on the last line written to it, above the bar of the notebook, at most once in `SECONDS`.

    So the bar's clock goes on, and a long cell says how far it is. A model may have written the line: what is not
    printable, such as the commands of a terminal, is left out.
    """

    def __init__(self) -> None:
        self.next = time.monotonic() + SECONDS

    def write(self, text: str) -> None:
        lines = re.split(r"[\r\n]+", text.strip())
        line = "".join(filter(str.isprintable, lines[-1]))
        if line and time.monotonic() >= self.next:
            tqdm.write(f"  {line}", file=sys.stderr)
            self.next = time.monotonic() + SECONDS

    def flush(self) -> None:
        """Does nothing: what is written is passed on at once or not at all."""


def list_notebooks() -> list[Path]:
    """Returns the numbered notebooks in the order of the chain."""
    return sorted(CHAIN.glob("[0-9][0-9]_*.ipynb"))


def stamp_of(path: Path, recipe: Recipe, before: str) -> str:
    """Returns the hash of what an executed notebook depends on: its code, the recipe, the package, and `before`.

    Neither its prose nor its comments count (see `meaning_hash`). `before` is the stamp of the notebook before it, and
    the hash of the data for the first.
    """
    digest = hashlib.sha256(before.encode())
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            digest.update(meaning_hash(plain(cell.source)).encode())
    digest.update(recipe.to_yaml().encode())
    digest.update(code_hash().encode())
    return digest.hexdigest()


def plain(source: str) -> str:
    """Returns a cell as Python: IPython writes its magics as calls."""
    try:
        return TransformerManager().transform_cell(source)
    except SyntaxError:  # somebody is still writing it: executing it will say what is wrong
        return source


def stamps(recipe: Recipe, data: str) -> dict[Path, str]:
    """Returns the stamp of every notebook, in order, if executed now; `data` is from `tasks.data_fingerprint`."""
    found: dict[Path, str] = {}
    stamp = data
    for path in list_notebooks():
        stamp = found[path] = stamp_of(path, recipe, before=stamp)
    return found


def stamp_path(run: Path, path: Path) -> Path:
    """Returns where a run keeps the stamp of a notebook."""
    return run / "notebooks" / f"{path.stem}.stamp"


def is_executed(run: Path, path: Path, stamp: str) -> bool:
    """Whether a run holds a notebook with this stamp; one that was cut short is another."""
    kept = stamp_path(run, path)
    return kept.is_file() and kept.read_bytes() == stamp.encode()


def forget_notebooks(run: Path, chosen: list[Path]) -> None:
    """Removes what notebooks, in the chain's order, made in a run's folder, and the stamps of all that follow.

    What only later notebooks made stays where it knows itself whether it still holds: a record of an evaluation names
    the adapter and the code that it is of.
    """
    chain = list_notebooks()
    for path in chain[chain.index(chosen[0]) :]:
        stamp_path(run, path).unlink(missing_ok=True)
    for path in chosen:
        for pattern in KEPT.get(path.stem, ()):
            folder.remove_files(sorted(run.glob(pattern)))


def execute_notebook(path: Path, run: Path, parameters: dict[str, Any]) -> None:
    """Runs one notebook with papermill and writes the executed copy to `run/notebooks/`.

    Raises:
        NotebookError: a cell failed; the executed copy shows how far it came.
    """
    undeclared = set(parameters) - set(papermill.inspect_notebook(str(path)))
    if undeclared:
        raise NotebookError(f"{path.name} declares no parameter {sorted(undeclared)[0]!r} in its parameters cell.")
    executed = run / "notebooks" / path.name
    executed.parent.mkdir(exist_ok=True)
    relay = Relay()
    with tempfile.TemporaryDirectory(prefix="grpo-") as sockets:  # of this user's alone, and of this kernel's
        try:
            papermill.execute_notebook(
                str(path),
                str(executed),
                parameters,
                kernel_name="python3",
                progress_bar={"desc": path.stem},  # type: ignore[arg-type], papermill takes tqdm's arguments too
                stdout_file=relay,
                stderr_file=relay,
                kernel_manager_class=LockedKernel,
                config=Config(KernelManager=KERNEL | {"ip": f"{sockets}/kernel"}),
                extra_arguments=["--IPKernelApp.log_level=50"],  # silence about sockets that close while it is stopped
            )
        except (DeadKernelError, NoSuchKernel) as error:
            raise NotebookError(f"{path.stem}: the kernel died, perhaps for lack of memory ({error})") from error
        except PapermillExecutionError as error:
            last, trace = (re.sub(r"\x1b\[[0-9;]*m", "", text) for text in (error.evalue, "\n".join(error.traceback)))
            where = f"{path.stem}, cell {error.exec_count}{_own_line(trace)}"
            last = last.strip()
            raise NotebookError(f"{where}: {error.ename}: {last} (see {executed})") from error


def _own_line(trace: str) -> str:
    """Where in a file that the recipe imports the last of the traceback's frames is, or ""."""
    frames = re.findall(r"^File (\S+?)>?:(\d+), in", trace, flags=re.MULTILINE)
    own = [f", {Path(file).name.strip('<>')}, line {line}" for file, line in frames if not OTHERS.search(file)]
    return own[-1] if own else ""


def reproduce(
    recipe: Recipe, parameters: dict[str, Any], data: str, chosen: list[Path], forced: bool
) -> dict[str, float | None]:
    """Runs the chosen notebooks of the chain that are not already done, and locks the run's folder meanwhile.

    Args:
        recipe: the recipe that the parameters lead to.
        parameters: papermill's parameters, `RECIPE` and `OVERRIDES`.
        data: the hash of the data set, from `tasks.data_fingerprint`.
        chosen: the notebooks to run, in order.
        forced: forget first what the chosen notebooks have made; of all five chapters, whatever the run's folder holds.

    Returns:
        Notebook name -> seconds it took, or None when it was skipped.
    """
    seconds: dict[str, float | None] = {}
    with folder.hold_lock(folder.outputs_folder() / recipe.name):
        if forced and chosen[:CHAPTERS] == list_notebooks()[:CHAPTERS]:
            folder.clear_run(folder.outputs_folder() / recipe.name)
        run = folder.start_run(recipe)
        if forced:
            forget_notebooks(run, chosen)
        for path, stamp in stamps(recipe, data).items():
            if path not in chosen:
                continue
            if is_executed(run, path, stamp):
                print(f"{path.stem}: done before, skipped")
                seconds[path.stem] = None
                continue
            stamp_path(run, path).unlink(missing_ok=True)
            began = time.monotonic()
            execute_notebook(path, run, parameters)
            seconds[path.stem] = time.monotonic() - began
            folder.write_file(stamp_path(run, path), stamp)
        folder.write_manifest(run)
    return seconds


def choose_notebooks(only: str | None, first: str | None, further: bool = False) -> list[Path]:
    """Returns the notebooks that `--only NN` or `--from NN` name, else the chapters, and all with `further`.

    From a chapter on it is the chapters that follow; from a notebook that goes further on, all.

    Raises:
        NotebookError: there is no such notebook.
    """
    chain, number, start = list_notebooks(), only or first, 0
    if number is not None:
        named = [i for i, path in enumerate(chain) if number.isdecimal() and int(path.name[:2]) == int(number)]
        if not named:
            raise NotebookError(f"There is no notebook {number!r}; there are {', '.join(path.stem for path in chain)}.")
        start = named[0]
    if only:
        return [chain[start]]
    return chain[start:] if further or start >= CHAPTERS else chain[start:CHAPTERS]


def chain_summary(run: Path, seconds: dict[str, float | None]) -> str:
    """Returns the closing text: the results table, the figures' paths and what each notebook took."""
    results = run / "results.md"
    lines = ["", results.read_text(encoding="utf-8")] if results.is_file() else [""]
    lines += [f"figure: {path}" for path in sorted((run / "figures").glob("*.png"))]
    lines += [f"{name:<28} {'skipped' if took is None else f'{took:6.0f} s'}" for name, took in seconds.items()]
    lines.append(f"{'total':<28} {sum(took or 0 for took in seconds.values()):6.0f} s")
    return "\n".join(lines)
