"""Are a run's tables and figures what its records say? `grpo verify --recipe cpu-code`.

The chain is run once more on a copy of what the run recorded (completions with their verdicts, adapters, training
logs), and the sha256 of every table and figure made so is compared with the run's `manifest.json`: of figures where the
installed matplotlib is the one that drew them. The stamps prove that the records are those of this code and data. Where
the recipe's GPU is missing no notebook is run, and tables and the figures of `plots` are made from the records alone.
Of the notebooks that go further, where they were run, 06 trains its small policies again and 09 asks its teacher.
"""

import importlib.metadata
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from grpo_utils import runs, tasks
from grpo_utils.runs import Recipe, chain

DERIVED = ("figures", "notebooks", "results.*", "manifest.json", "lock", "from_scratch")
DRAWN_WITH = re.compile(rb"<dc:title>Matplotlib v([^,]+),")  # in every SVG that it writes


def verify_run(recipe: Recipe, parameters: dict[str, Any]) -> list[str]:
    """Makes every table and figure of a finished run again and returns the names of those with the same bytes.

    `parameters` are papermill's that lead to the recipe, `RECIPE` and `OVERRIDES`.

    Raises:
        RunError: the run is not finished, was made with other code or data, or a file differs; the text names them.
    """
    run = runs.existing_run(recipe)
    recorded = runs.read_json(runs.need_file(run / "manifest.json", "05_checkpoint_evaluation"))
    stamps = chain.stamps(recipe, tasks.data_fingerprint(recipe))
    done = [path for path, stamp in stamps.items() if chain.is_executed(run, path, stamp)]
    for path in chain.choose_notebooks(None, None):
        if path not in done:
            raise runs.RunError(
                f"{run} has no {path.stem} made with this code, data and settings: run the chain first, or check out "
                "the commit that its environment.json names."
            )
    names = comparable(run, recorded)
    require_equal(recorded, runs.manifest(run), names, f"changed in {run} since it was made")
    made = _made_again(recipe, run, parameters, done)
    if not _has_gpu(recipe):
        left = names - set(made)
        print(f"left out, because only notebooks draw them, which need the recipe's GPU: {', '.join(sorted(left))}")
        names -= left
    require_equal(recorded, made, names, "not what the records give")
    return sorted(names)


def comparable(run: Path, recorded: dict[str, str]) -> set[str]:
    """Returns the names in a manifest whose bytes must come out the same: all but figures of another matplotlib.

    A figure's SVG says which version drew it, and its PNG at the same time.
    """
    installed, names = importlib.metadata.version("matplotlib"), set(recorded)
    for name in recorded:
        path = (run / name).with_suffix(".svg")
        found = DRAWN_WITH.search(path.read_bytes()) if path.is_file() else None
        if found and found[1].decode() != installed:
            print(f"{name} is left out: matplotlib {found[1].decode()} drew it, here is {installed}")
            names.remove(name)
    return names


def require_equal(recorded: dict[str, str], found: dict[str, str], names: set[str], trouble: str) -> None:
    """Raises a RunError that names the files whose hashes in two manifests differ, and the trouble with them."""
    different = sorted(name for name in names if recorded[name] != found.get(name))
    if different:
        raise runs.RunError(f"{', '.join(different)}: {trouble}.")


def _has_gpu(recipe: Recipe) -> bool:
    """Whether this machine has the GPU that the recipe needs, or the recipe needs none."""
    try:
        runs.need_gpu(recipe)
    except runs.RunError:
        return False
    return True


def _made_again(recipe: Recipe, run: Path, parameters: dict[str, Any], done: list[Path]) -> dict[str, str]:
    """The manifest of a copy of the run whose tables and figures were made again."""
    before = os.environ.get("GRPO_OUTPUTS_DIR")
    with _folder_beside(run) as outputs:
        with runs.hold_lock(run):
            copy = Path(outputs) / run.name
            _copy(run, copy)
        if not _has_gpu(recipe):
            from grpo_utils import evaluation

            from .plots import draw_figures  # they load torch and TRL

            evaluation.write_results(recipe, copy)
            draw_figures(recipe, copy)
            return runs.manifest(copy)
        os.environ["GRPO_OUTPUTS_DIR"] = outputs  # for the notebooks' kernels
        try:
            chain.reproduce(recipe, parameters, tasks.data_fingerprint(recipe), done, forced=False)
        finally:
            del os.environ["GRPO_OUTPUTS_DIR"]
            os.environ.update({} if before is None else {"GRPO_OUTPUTS_DIR": before})
        return runs.manifest(copy)


def _folder_beside(run: Path) -> "tempfile.TemporaryDirectory[str]":
    """A folder on the disk of the run, where most of a copy are links."""
    try:
        return tempfile.TemporaryDirectory(dir=run.parent, prefix=".verify-")
    except OSError as error:
        raise runs.RunError(
            f"{run.parent} cannot be written ({error.strerror}), and a run is verified on a copy beside it: make it "
            "writable, or copy the run and name the folder that holds the copy in GRPO_OUTPUTS_DIR."
        ) from error


def _copy(run: Path, copy: Path) -> None:
    """Copies what a run recorded."""
    try:
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns(*DERIVED), copy_function=_link)
    except shutil.Error as error:  # of every file that could not be copied; one says enough
        source, _, reason = error.args[0][0]
        raise runs.RunError(f"{source} cannot be copied to verify the run: {reason}.") from error


def _link(source: str, target: str) -> None:
    """Records are only replaced, so a link to them is a copy; a database is written in place."""
    try:
        (shutil.copy2 if source.endswith(".sqlite") else os.link)(source, target)
    except OSError:  # a disk without links, a rule against them, or folders that lie on two disks: a copy does as well
        shutil.copy2(source, target)
