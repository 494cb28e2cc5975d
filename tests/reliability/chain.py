"""A chain of three small notebooks on the real runner: seconds instead of minutes, for the many moments to kill it at.

The notebooks do what the real ones do to a run's folder, with the same functions: records that are kept when they are
there, a "training" whose every step depends on the one before, with sealed checkpoints and a log, then a table and a
figure from the files alone. As a program it is `grpo reproduce` with these notebooks:
`python tests/reliability/chain.py FOLDER [--force]`, where FOLDER gets the notebooks.
"""

import sys
from pathlib import Path

import nbformat

from grpo_utils import runs
from grpo_utils.runs import chain, commands

PARAMETERS = 'RECIPE: str = "smoke-code"\nOVERRIDES: dict = {}'
START = """
import hashlib, json, time
from grpo_utils import runs
recipe = runs.load_recipe(RECIPE, OVERRIDES)
run = runs.start_run(recipe)
"""
MEASURE = """
for number in range(4):
    path = run / "evaluations" / f"base.test.{number}shot.json"
    if not path.is_file():
        time.sleep(0.1)
        runs.write_file(path, json.dumps({"value": hashlib.sha256(bytes([number])).hexdigest()}))
"""
TRAIN = """
with runs.hold_lock(run):
    done = runs.drop_damaged(run)
    steps = json.loads((done[-1] / "state.json").read_text()) if done else []
    runs.write_file(run / "training_log.jsonl", "".join(json.dumps(step) + "\\n" for step in steps))
    while len(steps) < 6:
        time.sleep(0.1)
        steps.append(hashlib.sha256(json.dumps(steps).encode()).hexdigest())
        with (run / "training_log.jsonl").open("a") as log:
            log.write(json.dumps(steps[-1]) + "\\n")
        folder = run / "checkpoints" / f"checkpoint-{len(steps)}"
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(steps[-1].encode() * 1000)
        (folder / "state.json").write_text(json.dumps(steps))
        runs.seal_adapter(folder)
"""
REPORT = """
records = [runs.read_json(path)["value"] for path in sorted((run / "evaluations").glob("*.json"))]
weights = [folder.joinpath("weights").read_text()[:64] for folder in runs.checkpoints(run)]
log = [json.loads(line) for line in (run / "training_log.jsonl").read_text().splitlines()]
assert (len(records), len(weights), len(log)) == (4, 6, 6)
runs.write_file(run / "results.csv", "\\n".join([*records, *weights, *log]))
runs.write_file(run / "results.md", "| table |\\n")
(run / "figures").mkdir(exist_ok=True)
(run / "figures" / "curve.svg").write_text(f"<svg>{log[-1]}</svg>")
"""


def write_notebooks(folder: Path) -> None:
    """Writes the three notebooks, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in (("01_measure", MEASURE), ("02_train", TRAIN), ("03_report", REPORT)):
        path = folder / f"{name}.ipynb"
        if not path.is_file():
            cells = [nbformat.v4.new_code_cell(source.strip()) for source in (PARAMETERS, START, body)]
            cells[0].metadata["tags"] = ["parameters"]
            kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
            nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def main() -> None:
    folder = Path(sys.argv[1])
    write_notebooks(folder)
    chain.CHAIN = folder
    recipe = runs.load_recipe("smoke-code")
    parameters = {"RECIPE": "smoke-code", "OVERRIDES": {}}
    seconds = chain.reproduce(recipe, parameters, "data", chain.list_notebooks(), forced="--force" in sys.argv)
    print(chain.chain_summary(runs.outputs_folder() / recipe.name, seconds))


if __name__ == "__main__":
    commands.run_command(main)
