"""Keeps in `notebooks/` what the chapters put out, so that they can be read where nothing runs: `make notebooks`.

`python docs/outputs.py --recipe cpu-code --only 04` runs `grpo reproduce` with the same arguments, then copies outputs
from the run's executed chapters, and executes their solutions. `--check` compares what is kept with the sources.

An output is trimmed to what is worth reading and to what is the same in every run: no bar but its last state, no pace,
no path, smaller images.
"""

import argparse
import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode
from PIL import Image

from grpo_utils import runs, tasks
from grpo_utils.runs import ROOT, UserError, chain, commands
from grpo_utils.runs.sources import meaning_hash

SOLUTIONS = ROOT / "notebooks" / "solutions"
KEPT = ("text/html", "image/png", "image/svg+xml", "text/markdown", "text/latex", "text/plain")
LIMITS = {"image/png": 100_000, "image/svg+xml": 60_000, "text/html": 150_000, "text": 20_000}  # bytes of one output
ALL = 5_000_000  # bytes of all notebooks
COLUMNS = 8  # of a table
RUN = "In the run shown here"  # begins a paragraph whose numbers stand in the outputs
OLDER = "*The outputs are of an older commit.*"  # stands below a title while that is so

BAR = re.compile(r"^(?P<name>.*?):? +100%\|.*\| (?P<count>\d+/\d+) \[[^,\]]*,[^,\]]*(?:, (?P<result>[^\]]*))?\]")
WARNING = re.compile(r"^\S+:\d+: (\w+Warning: .*)$")
PACE = re.compile(r"  (?:tokens per second \S+|[\d.]+ s a step|(?:\d+ days?, )?\d+:\d\d:\d\d left)")
STYLED = re.compile(r"\bT_[0-9a-f]{5}(?=_|\"|'| )")  # pandas numbers its styled tables at random
MACHINE = re.compile(  # a path or a pace
    r"(?<![\w<])/(?:home|root|tmp|work|workspace|mnt|content|private|Users|var)/\S|\b[A-Z]:\\Users\b"
    r"|(?:it|cell|completion)/s\b|\d ?s/(?:it|cell|completion)\b| s a step|\d tokens per second"
)


def trim(outputs: list[NotebookNode], place: int) -> list[NotebookNode]:
    """Returns what is kept of a cell's outputs; `place` is the cell's, for names that must differ within a page."""
    kept: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream":
            same = [one for one in kept if one.output_type == "stream" and one.name == output.name]
            if same:
                same[0].text += output.text
            else:
                kept.append(nbformat.v4.new_output("stream", name=output.name, text=output.text))
        elif output.output_type in ("display_data", "execute_result"):
            data = {kind: _smaller(kind, output.data[kind], place) for kind in KEPT if kind in output.data}
            count = {"execution_count": output.execution_count} if output.output_type == "execute_result" else {}
            kept.append(nbformat.v4.new_output(output.output_type, data=data, **count))
        else:
            kept.append(output)
    for output in kept:
        if output.output_type == "stream":
            output.text = _log(output.text) if output.name == "stderr" else PACE.sub("", output.text)
    return [output for output in kept if output.get("text") != ""]


def _log(text: str) -> str:
    """The last state of every bar without its times, and warnings without the file that they came from."""
    lines: dict[str, str] = {}
    for line in re.split(r"[\r\n]+", text):
        if found := BAR.match(line.strip()):
            lines[found["name"]] = ", ".join(filter(None, [f"{found['name']}: {found['count']}", found["result"]]))
        elif found := WARNING.match(line):
            lines[line] = found[1]
    return "".join(f"{line}\n" for line in lines.values())


def _smaller(kind: str, content: str, place: int) -> str:
    if kind == "image/png":
        buffer = io.BytesIO()
        picture = Image.open(io.BytesIO(base64.b64decode(content))).convert("RGBA")
        picture.quantize(128, method=Image.Quantize.FASTOCTREE).save(buffer, "png", optimize=True)
        return base64.b64encode(buffer.getvalue()).decode()
    if kind == "text/html":
        content = STYLED.sub(f"T_{place}", re.sub(r"<style scoped>.*?</style>\n?", "", content, flags=re.DOTALL))
        if len(content) > LIMITS[kind]:
            return f"<p>A page of {len(content) // 1000} kB: run the chapter to see it.</p>"
    return content


def keep_outputs(path: Path, executed: Path, recipe: str) -> None:
    """Writes the outputs of an executed copy into a notebook, and which recipe and which cells they are of.

    Raises:
        UserError: the copy was executed from other code; prose may differ.
    """
    notebook, done = nbformat.read(path, as_version=4), nbformat.read(executed, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    ran = [cell for cell in done.cells if cell.cell_type == "code"]
    ran = [cell for cell in ran if "injected-parameters" not in cell.metadata.get("tags", [])]
    if [cell.source for cell in ran] != [cell.source for cell in code]:
        raise UserError(f"{executed} was executed from other code than that of {path.name}: run it again.")
    for number, (cell, copy) in enumerate(zip(code, ran, strict=True), 1):
        cell.execution_count, cell.outputs = number, trim(copy.outputs, number)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
    notebook.metadata["grpo"] = {"recipe": recipe, **_hashes(notebook, recipe)}
    runs.write_file(path, nbformat.writes(notebook) + "\n")


def _hashes(notebook: NotebookNode, recipe: str) -> dict[str, str]:
    """What outputs depend on, as far as it stands in this repository's text: the cells' code and the recipe."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code" and "colab.setup(" not in cell.source]
    meant = "".join(meaning_hash(chain.plain(source)) for source in code)
    block = json.dumps(yaml.safe_load(runs.recipe_files()[recipe].read_text(encoding="utf-8")), sort_keys=True)
    return {"cells": sha256(meant.encode()).hexdigest()[:16], "settings": sha256(block.encode()).hexdigest()[:16]}


def find_faults(path: Path) -> Iterator[str]:
    """Yields what is wrong with the outputs that a notebook keeps, a sentence each."""
    notebook = nbformat.read(path, as_version=4)
    kept = notebook.metadata.get("grpo")
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    if kept is None:
        if outputs:
            yield "has outputs that `make notebooks` did not write."
        return
    now = _hashes(notebook, kept["recipe"])
    again = f'make notebooks ARGS="--only {path.name[:2]}" writes them again.'
    if now["cells"] != kept["cells"]:
        yield f"has other code than its outputs are of: {again}"
    if (now["settings"] != kept["settings"]) != (OLDER in notebook.cells[0].source):
        yield f"must say {OLDER!r} below its title, if and only if recipe {kept['recipe']!r} has changed: {again}"
    text = "\n".join(_texts(outputs))
    for output in outputs:
        if output.output_type == "error":
            yield f"ends in an error: {output.ename}."
        for kind, limit in LIMITS.items():
            if len(content := output.get("data", output).get(kind, "")) * (0.75 if kind == "image/png" else 1) > limit:
                yield f"has an output of {len(content)} bytes of {kind}; at most {limit} are kept."
        head = re.search(r"<thead>.*?</tr>", output.get("data", {}).get("text/html", ""), flags=re.DOTALL)
        if head and (wide := len(re.findall(r"<th[ >]", head[0]))) > COLUMNS + 1:
            yield f"has a table of {wide} columns; {COLUMNS} and the index can be read."
    if found := MACHINE.search(text):
        yield f"has a path or a pace in its outputs: {text[max(0, found.start() - 30) : found.end() + 30]!r}"
    prose = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for paragraph in prose.split("\n\n"):
        if RUN in paragraph:
            yield from (f"says {number!r} in {paragraph!r}, and no output does." for number in _unsaid(paragraph, text))


def _texts(outputs: list[NotebookNode]) -> Iterator[str]:
    """What stands in outputs to be read, without styles."""
    for output in outputs:
        yield output.get("text", "")
        for kind, content in output.get("data", {}).items():
            if kind != "image/png":
                yield re.sub(r"<style.*?</style>", "", content, flags=re.DOTALL)


def _unsaid(paragraph: str, text: str) -> Iterator[str]:
    """The numbers of a paragraph that no output holds, as they stand or, of a percentage, as a share.

    One without a sign may have any in an output ("15 points below"), one with a minus must have it there too.
    """
    said = set(re.findall(r"(?<![\d.])\d+(?:\.\d+)?", text)) | set(re.findall(r"(?<![\w.])-\d+(?:\.\d+)?", text))
    paragraph = re.sub(r"\]\([^)]*\)", "]", paragraph)  # an address is no number
    for sign, number, percent in re.findall(r"(?<![\w.])(-?)(\d+(?:\.\d+)?)( ?%)?", paragraph):
        digits = len(number.partition(".")[2])
        shares = {f"{float(number) / 100:.{digits + 2}f}"} if percent else set()
        if not {sign + one for one in {number} | shares} & said:
            yield sign + number + percent


def main() -> None:
    """Runs chapters, executes their solutions and keeps the outputs of both in `notebooks/`."""
    if sys.argv[1:] == ["--check"]:
        paths = [*chain.list_notebooks(), *sorted(SOLUTIONS.glob("*.ipynb"))]
        faults = [f"{path.relative_to(ROOT)} {fault}" for path in paths for fault in find_faults(path)]
        if (total := sum(path.stat().st_size for path in paths)) > ALL:
            faults.append(f"all notebooks have {total} bytes, at most {ALL} are kept.")
        print("\n".join(faults) or f"{len(paths)} notebooks, {total / 1e6:.1f} MB: outputs agree with their sources")
        raise SystemExit(bool(faults))
    parser = argparse.ArgumentParser(prog="python docs/outputs.py", description=main.__doc__)
    commands.add_recipe_options(parser)
    options, _ = parser.parse_known_args()
    if options.set:
        raise UserError("Outputs are kept of a recipe as it stands, without --set.")
    subprocess.run([sys.executable, "-m", "grpo_utils", "reproduce", *sys.argv[1:]], cwd=ROOT, check=True)
    name, overrides = commands.parameters_of(options.recipe, [], options.run)
    recipe = runs.load_recipe(name, overrides)
    run = runs.outputs_folder() / recipe.name
    for path, stamp in chain.stamps(recipe, tasks.data_fingerprint(recipe)).items():
        if not chain.is_executed(run, path, stamp):
            continue
        keep_outputs(path, run / "notebooks" / path.name, name)
        for solution in SOLUTIONS.glob(f"{path.name[:2]}_*.ipynb"):
            own = chain.stamp_of(solution, recipe, before=stamp)
            if not chain.is_executed(run, solution, own):
                chain.execute_notebook(solution, run, {"RECIPE": name, "OVERRIDES": overrides})
                runs.write_file(chain.stamp_path(run, solution), own)
            keep_outputs(solution, run / "notebooks" / solution.name, name)
            print(f"kept the outputs of {path.name} and {solution.name}")


if __name__ == "__main__":
    commands.run_command(main)
