"""Are a run's tables and figures what its records say? `python -m grpo_utils.verify --recipe cpu-code`.

The chain is run once more on a copy of what the run recorded (completions with their verdicts, adapters, training
logs), without its tables and figures, and the sha256 of every table and figure made so is compared with the run's
`manifest.json`. The five chapters train nothing and generate only the one answer at the end of notebook 05: the stamps
prove that the records are those of this code and data. Of the notebooks that go further, where they were run, 06 trains
its small policies again; 07 to 09 find their trainings in the copy, and 09 asks its teacher again what it does not
keep.
Tables are compared byte for byte. Figures too, where the installed matplotlib is the one that drew them.
"""

import argparse
import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from grpo_utils import commands, recipes, reproduce, runs
from grpo_utils.recipes import Recipe

DERIVED = ("figures", "notebooks", "results.*", "manifest.json", "lock", "from_scratch")


def verify(recipe: Recipe, parameters: dict[str, Any]) -> list[str]:
    """Derives every table and figure of a finished run again and compares the hashes with its manifest.

    Args:
        recipe: the run's recipe, overrides applied.
        parameters: papermill's parameters that lead to it, `RECIPE` and `OVERRIDES`.

    Returns:
        The names of the files that are as recorded and were made again with the same bytes.

    Raises:
        RunError: the run is not finished, was made with other code or data, or a file differs; the text names them.
    """
    run = runs.outputs() / recipe.name
    recorded = runs.read_json(runs.need(run / "manifest.json", "05_checkpoint_evaluation"))
    stamps = reproduce.stamps(recipe, parameters)
    done = [path for path, stamp in stamps.items() if reproduce.is_done(run, path, stamp)]
    for path in reproduce.choose(None, None):
        if path not in done:
            raise runs.RunError(
                f"{run} has no {path.stem} made with this code, data and settings: run the chain first, or check out "
                "the commit that its environment.json names."
            )
    names = comparable(recorded, runs.read_json(run / "environment.json")["packages"].get("matplotlib"))
    require_equal(recorded, runs.manifest(run), names, f"changed in {run} since it was made")
    require_equal(recorded, _made_again(recipe, run, parameters, done), names, "not what the records give")
    return sorted(names)


def comparable(recorded: dict[str, str], drawn_with: str | None) -> set[str]:
    """Returns the names in a manifest whose bytes must come out the same: without figures that another version drew."""
    installed = importlib.metadata.version("matplotlib")
    if drawn_with == installed:
        return set(recorded)
    print(f"figures are left out: matplotlib {drawn_with} drew them, here is {installed}")
    return {name for name in recorded if not name.startswith("figures/")}


def require_equal(recorded: dict[str, str], found: dict[str, str], names: set[str], trouble: str) -> None:
    """Compares two manifests in some names.

    Raises:
        RunError: names the files whose hashes differ, and the trouble with them.
    """
    different = sorted(name for name in names if recorded[name] != found.get(name))
    if different:
        raise runs.RunError(f"{', '.join(different)}: {trouble}.")


def _made_again(recipe: Recipe, run: Path, parameters: dict[str, Any], done: list[Path]) -> dict[str, str]:
    """The manifest of a copy of the run whose tables and figures were made again."""
    before = os.environ.get("GRPO_OUTPUTS_DIR")
    with tempfile.TemporaryDirectory(dir=run.parent, prefix=".verify-") as outputs:
        with runs.alone(run):
            copy = Path(outputs) / run.name
            shutil.copytree(run, copy, ignore=shutil.ignore_patterns(*DERIVED), copy_function=_copy)
        os.environ["GRPO_OUTPUTS_DIR"] = outputs  # for the notebooks' kernels
        try:
            reproduce.reproduce(recipe, parameters, done, forced=False)
        finally:
            del os.environ["GRPO_OUTPUTS_DIR"]
            os.environ.update({} if before is None else {"GRPO_OUTPUTS_DIR": before})
        return runs.manifest(copy)


def _copy(source: str, target: str) -> None:
    """Records are only replaced, so a link to them is a copy; a database is written in place."""
    (shutil.copy2 if source.endswith(".sqlite") else os.link)(source, target)


def main() -> None:
    """Derives the tables and figures of a finished run again from its records and compares them byte for byte."""
    parser = argparse.ArgumentParser(prog="python -m grpo_utils.verify", description=main.__doc__)
    commands.add_arguments(parser)
    name, overrides = commands.parameters_of(parser.parse_args())
    for file in verify(recipes.load(name, overrides), {"RECIPE": name, "OVERRIDES": overrides}):
        print(f"same bytes: {file}")


if __name__ == "__main__":
    commands.run(main)
