"""Builds the site: README, executed notebooks, results, guides and the API reference as static HTML in `_site/`.

`make site RECIPE=cpu-code`. The notebooks are those that the recipe's run has executed with today's code, the others as
the repository keeps them; each says which. The pages load nothing from elsewhere: they work offline.
"""

import argparse
import pkgutil
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

import grpo_utils
from grpo_utils import runs, tasks
from grpo_utils.runs import ROOT, Recipe, chain, commands
from grpo_utils.show import plots

SITE = ROOT / "_site"
SOLUTIONS = ROOT / "notebooks" / "solutions"
FILES = (
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "docs/*.md",
    "docs/house.svg",
    "docs/diagrams/*.svg",
    "figures/*/*",
    "data/*/README.md",
    "benchmarks/results/*",
)
GUIDES = ("docs/*.md", "figures/*/README.md", "data/*/README.md", "benchmarks/results/*.md", "CHANGELOG.md")


def stage(recipe: Recipe, folder: Path, command: str) -> None:
    """Writes the sources of the site: what the repository and a recipe's run hold, and a table of contents.

    `command` is what made the run; `folder` is where to.
    """
    run = runs.outputs_folder() / recipe.name
    for path in _found(ROOT, FILES):
        copy = folder / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, copy)
        if path.suffix == ".md":
            copy.write_text(within_the_site(copy.read_text(encoding="utf-8")), encoding="utf-8")
        if path.match("benchmarks/results/*.md"):  # tables without a heading
            copy.write_text(f"# Measured: {path.stem}\n\n{copy.read_text(encoding='utf-8')}", encoding="utf-8")
    contents = {
        "Notebooks": [stage_notebook(path, folder, *origin) for path, origin in origins(recipe, command).items()],
        "Solutions": [stage_notebook(path, folder, path, kept(path)) for path in sorted(SOLUTIONS.glob("*.ipynb"))],
        "Results": [stage_results(run, folder, command)],
        "More": _found(folder, GUIDES),
        "Reference": stage_reference(folder),
    }
    index = (ROOT / "README.md").read_text(encoding="utf-8")
    for caption, pages in contents.items():
        names = "".join(f"/{page.with_suffix('')}\n" for page in pages)
        index += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}```\n"
    runs.write_file(folder / "index.md", index)


def within_the_site(text: str) -> str:
    """Returns Markdown without links to source files, which no page shows; the README is the site's first page.

    Example:
        >>> within_the_site("a [guard](../grpo_utils/training/signal_guard.py), see the [README](../README.md#more)")
        'a guard, see the [README](../index.md#more)'
    """
    text = re.sub(r"\[([^\]]*)\]\(\.\./(?:grpo_utils|tests)\b[^)]*\)", r"\1", text)
    return text.replace("](../README.md", "](../index.md")


def _found(root: Path, patterns: Sequence[str]) -> list[Path]:
    return [path.relative_to(root) for pattern in patterns for path in sorted(root.glob(pattern))]


def origins(recipe: Recipe, command: str) -> dict[Path, tuple[Path, str]]:
    """Returns for every chapter the file whose outputs the site shows, and a sentence on where they are from."""
    run, found = runs.outputs_folder() / recipe.name, {}
    for path, stamp in chain.stamps(recipe, tasks.data_fingerprint(recipe)).items():
        if chain.is_executed(run, path, stamp):
            found[path] = run / "notebooks" / path.name, f"Executed by `{command} --only {path.name[:2]}`."
        else:
            found[path] = path, kept(path)
    return found


def kept(path: Path) -> str:
    """Returns a sentence on the outputs that a notebook of the repository keeps."""
    recipe = nbformat.read(path, as_version=4).metadata.get("grpo", {}).get("recipe")
    return f"Outputs of recipe `{recipe}`, as the repository keeps them." if recipe else "Not executed."


def stage_notebook(path: Path, folder: Path, shown: Path, note: str) -> Path:
    """Writes a notebook as it was executed, without what names this machine, and with a note below its title."""
    notebook = nbformat.read(shown, as_version=4)
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(f"*{note}*"))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = within_the_site(cell.source)
    for key in ("papermill", "widgets"):
        notebook.metadata.pop(key, None)
    page = path.relative_to(ROOT)
    runs.write_file(folder / page, nbformat.writes(notebook))
    return page


def stage_results(run: Path, folder: Path, command: str) -> Path:
    """Writes the page of a run's tables and figures, each figure with the command that made it."""
    made: dict[str, Any] = runs.read_json(run / "environment.json")
    versions = ", ".join(f"{name} {version}" for name, version in made["packages"].items())
    lines = [
        f"# Results of `{run.name}`",
        "",
        f"Seed {made['seed']}, commit {str(made['commit'])[:7]}, {made.get('processor', made['machine'])}, {versions}.",
        "",
    ]
    lines += [(run / "results.md").read_text(encoding="utf-8")]
    (folder / "results").mkdir()
    for path in chain.list_notebooks():
        code = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
        for figure in sorted((run / "figures").glob("*.svg")):
            if f'"{figure.stem}"' in code:
                shutil.copyfile(figure, folder / "results" / figure.name)
                caption = f"{plots.CAPTIONS.get(figure.stem, '')} Made by `{command} --only {path.name[:2]}`.".strip()
                lines += [f"![{figure.stem}]({figure.name})", "", caption, ""]
    runs.write_file(folder / "results" / "run.md", "\n".join(lines))
    return Path("results/run.md")


# commands, and what runs in the sandbox's other processes
NOT_FOR_USE = re.compile(r"__main__$|\.sandbox\.(jail|judge)\b")


def stage_reference(folder: Path) -> list[Path]:
    """Writes a page for every module that can be imported for use, which Sphinx fills from the docstrings."""
    found = pkgutil.walk_packages(grpo_utils.__path__, "grpo_utils.")
    names = sorted(module.name for module in found if not NOT_FOR_USE.search(module.name))
    for name in names:
        title = name.removeprefix("grpo_utils.")
        text = f"{title}\n{'=' * len(title)}\n\n.. automodule:: {name}\n   :members:\n   :ignore-module-all:\n"
        runs.write_file(folder / "reference" / f"{title}.rst", text)
    return [Path(f"reference/{name.removeprefix('grpo_utils.')}.rst") for name in names]


def main() -> None:
    """Builds the site from the repository and a finished run."""
    from sphinx.cmd.build import main as sphinx

    parser = argparse.ArgumentParser(prog="python docs/build.py", description=main.__doc__)
    commands.add_recipe_options(parser)
    options = parser.parse_args()
    recipe = runs.load_recipe(*commands.parameters_of(options.recipe, options.set, options.run))
    command = shlex.join(["grpo", "reproduce", *sys.argv[1:]])
    run = runs.outputs_folder() / recipe.name
    runs.need_file(run / "results.md", "05_checkpoint_evaluation")
    shutil.rmtree(SITE, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        stage(recipe, Path(folder), command)
        options = ["-q", "--fail-on-warning", "--keep-going", "-c", str(ROOT / "docs"), "-d", f"{folder}/.doctrees"]
        if sphinx([*options, folder, str(SITE)]):
            raise SystemExit("error: the site has the faults that are listed above.")
    print(SITE / "index.html")


if __name__ == "__main__":
    commands.run_command(main)
