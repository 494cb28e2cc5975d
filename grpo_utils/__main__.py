"""The command line, `grpo` or `python -m grpo_utils`: what the notebooks do, and what is done with a finished run.

Each command loads what it needs when it is called: a mistake in a recipe or in data is told before torch is read.
"""

import importlib.metadata
import importlib.util
import itertools
import json
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from grpo_utils import runs
from grpo_utils.runs import LAUNCHED, Recipe, Split, UserError, commands

app = typer.Typer(
    name="grpo",
    help="Post-training with GRPO: run the notebooks, train, evaluate, and show what a run made.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Data sets: a local copy of one, or its tasks as JSON lines.", no_args_is_help=True)
app.add_typer(data, name="tasks")

RecipeName = Annotated[str | None, typer.Option("--recipe", help="Name or path; default: the run's own, or cpu-code.")]
Settings = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override: grpo.max_steps=5.")]
Imports = Annotated[
    list[Path], typer.Option("--import", metavar="FILE.py", help="Rewards or a kind of task of your own; repeatable.")
]
RunName = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="Folder in outputs/; default: the recipe's.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(importlib.metadata.version("grpo-utils"))
        raise typer.Exit


@app.callback()
def _before_all(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end.")
    ] = False,
) -> None:
    """What comes before a command."""


@app.command()
def check(
    recipe: RecipeName = None,
    settings: Settings = [],  # noqa: B006
    imports: Imports = [],  # noqa: B006
) -> None:
    """Check a recipe before anything runs, its arguments, data and rewards: grpo check --recipe mine.yaml"""
    _, chosen = _recipe(recipe, settings, None, imports, reads_data=True)
    from grpo_utils import policy, tasks, training
    from grpo_utils.rewards import audit

    training.check_before_start(chosen)
    splits = {split: tasks.load_judged(chosen, split) for split in tasks.SPLITS}
    print("tasks:", ", ".join(f"{len(batch)} {split}" for split, batch in splits.items()))
    practised = {task.question(chosen.prompt) for task in (*splits["prompt"], *splits["train"])}
    for split in ("validation", "test"):
        if known := [task.task_id for task in splits[split] if task.question(chosen.prompt) in practised]:
            print(f"{len(known)} {split} tasks are training tasks too, such as {known[0]!r}: they measure nothing")
    report = audit.audit_recipe(chosen, splits, policy.load_tokenizer(chosen.model).encode)
    print("what the rewards pay, on average:", report.table.round(3).to_string(), *report.notes, sep="\n")
    report.require()
    print(f"recipe {chosen.name} can run: its arguments fit what is installed, and its rewards keep their promises")


@app.command("list")
def list_all() -> None:
    """List runs with how far they are, recipes and rewards."""
    from grpo_utils.show import overview

    print(*overview.list_all(), sep="\n")


@app.command()
def compare(
    before: Annotated[str, typer.Argument(metavar="RUN[:POLICY]")],
    after: Annotated[str, typer.Argument(metavar="RUN[:POLICY]")],
    split: Annotated[Split, typer.Option(help="On which tasks.")] = "test",
) -> None:
    """Compare two runs, or two policies of one, paired by task: grpo compare cpu-code:warm-start cpu-code"""
    from grpo_utils import evaluation
    from grpo_utils.show import overview, plots

    found = overview.compare_runs(before, after, split)
    p_values = evaluation.holm([change.p_value for *_, change in found.values()])
    print(f"{after} - {before} on {split}, in points with 95 % intervals, decided by Holm's rule")
    for (score, (old, new, change)), p_value in zip(found.items(), p_values, strict=True):
        word = evaluation.verdict(change.value, p_value)
        print(f"{score:<17} {100 * old:5.1f} to {100 * new:5.1f}: {change.in_points()}, {word} (p {p_value:.2g})")
    figure = plots.differences({f"{after} - {before}": {one: row[2] for one, row in found.items()}}, "points of pass@1")
    run = runs.outputs_folder() / after.partition(":")[0]
    path = run / f"{before}-{after}-{split}.png".replace(":", "-")  # not among the figures that the chain verifies
    figure.savefig(path)
    print(path)


@app.command()
def reproduce(
    recipe: RecipeName = None,
    settings: Settings = [],  # noqa: B006, typer copies it
    imports: Imports = [],  # noqa: B006
    run: RunName = None,
    only: Annotated[str | None, typer.Option(metavar="NN", help="Run one notebook.")] = None,
    first: Annotated[
        str | None, typer.Option("--from", metavar="NN", help="Run this notebook and those after it.")
    ] = None,
    further: Annotated[bool, typer.Option("--all", help="Go further: the notebooks after 05 too.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Start over: forget what this run has done, or with --only or --from what these notebooks made (04"
            " trains again, 03 the warm start too; 02 and 05 measure again), and that later ones were run. To go on"
            " after a kill, leave it out.",
        ),
    ] = False,
) -> None:
    """Run the notebooks 01 to 05 headlessly and print what they found: grpo reproduce --recipe smoke-code"""
    if only and first:
        raise UserError("--only and --from name one notebook each: give one of them.")
    parameters, chosen_recipe = _recipe(recipe, settings, run, imports, reads_data=True)
    runs.need_gpu(chosen_recipe)
    from grpo_utils import tasks, training
    from grpo_utils.runs import chain

    training.check_before_start(chosen_recipe)
    chosen = chain.choose_notebooks(only, first, further)
    folder = runs.outputs_folder() / chosen_recipe.name
    print(f"recipe {parameters['RECIPE']}, run {folder}", flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # papermill's own
        seconds = chain.reproduce(chosen_recipe, parameters, tasks.data_fingerprint(chosen_recipe), chosen, force)
    print(chain.chain_summary(folder, seconds))


@app.command()
def train(
    recipe: RecipeName = None,
    settings: Settings = [],  # noqa: B006
    imports: Imports = [],  # noqa: B006
    run: RunName = None,
    folder: Annotated[Path | None, typer.Option(hidden=True)] = None,  # what `training.launch` gives: where to train
) -> None:
    """Say whether a recipe is worth it and train its policy, or go on with a run: grpo train --set grpo.max_steps=5"""
    _, chosen = _recipe(recipe, settings, run, imports, reads_data=True)
    if chosen.model.engine == "unsloth" and LAUNCHED in os.environ:
        _import_unsloth()
    from grpo_utils import evaluation, training
    from grpo_utils.show.panel import Panel

    training.check_before_start(chosen)
    where = folder or runs.start_run(chosen)
    if not training.is_launched():
        if training.launch_command(chosen, where) or chosen.without_gpu:  # what measuring holds, training may need
            print("Notebook 03 says whether this is worth training: grpo reproduce --only 03")
        else:
            training.warm_start(chosen, where, on_log=Panel())
            print(evaluation.gate(chosen, where))
    training.practice_tasks(chosen, where)  # the filter by pass rate may leave too few
    training.train(chosen, where, on_log=Panel())


@app.command()
def extend(
    run: Annotated[str, typer.Argument(help="Its name in outputs/.")],
    steps: Annotated[int, typer.Argument(help="How many it shall have in all.")],
) -> None:
    """Train a finished run further, and go on as if it had always been that long: grpo extend cpu-code 32"""
    _, chosen = _recipe(None, [], run)
    runs.extend_run(chosen, steps)
    train(run=run)
    print(f"To measure it: grpo reproduce --run {run}")


def _import_unsloth() -> None:
    """Imports Unsloth before TRL, transformers and PEFT, which it patches as they load."""
    if importlib.util.find_spec("unsloth") is None:
        raise UserError(
            "The recipe wants Unsloth, which is not installed: install the GPU profile, or set model.engine to "
            "transformers and grpo.use_vllm to false."
        )
    os.environ.setdefault("UNSLOTH_VLLM_STANDBY", "1")  # read while Unsloth is imported
    importlib.import_module("unsloth")


@app.command()
def evaluate(
    recipe: RecipeName = None,
    settings: Settings = [],  # noqa: B006
    imports: Imports = [],  # noqa: B006
    run: RunName = None,
    split: Annotated[Split, typer.Option(help="Which tasks.")] = "validation",
    dataset: Annotated[
        str | None, typer.Option(help="Another data set's test split instead, such as human-eval.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Of another data set, if its answers are longer.")] = None,
    checkpoint: Annotated[list[str], typer.Option(help="base or checkpoint-N, repeatable; default: all.")] = [],  # noqa: B006
    samples: Annotated[int | None, typer.Option(min=1, help="Sample each task so often, for pass@k up to it.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of these samples; default: the recipe's.")] = None,
) -> None:
    """Evaluate checkpoints of a run and print the table: grpo evaluate --split test --checkpoint checkpoint-16"""
    _, chosen = _recipe(recipe, settings, run, imports, reads_data=True)
    if run and not recipe and not settings:  # of a mistyped name it would measure the base
        runs.existing_run(chosen)
    if temperature is not None and (samples is None or not temperature > 0):
        raise UserError("--temperature goes with --samples, and is above 0.")
    from grpo_utils import evaluation
    from grpo_utils.show import plots

    split = "test" if dataset else split
    names, measured = evaluation.plan_evaluation(chosen, split, checkpoint, dataset, max_new_tokens)
    folder = runs.start_run(chosen)
    drawn = evaluation.Drawn(samples, temperature or chosen.evaluation.temperature) if samples else None
    evaluation.sweep(measured, folder, names, split, dataset=dataset, drawn=drawn)
    records, label = evaluation.load_records(folder), dataset or split
    label = drawn.label(label) if drawn else label
    print(evaluation.summarise_records(records).round(3).to_string(index=False))
    for sentence in evaluation.without_effect(records):
        print(sentence)
    prompts = [chosen.prompt.shots] if drawn else list(chosen.evaluation.samples[split])
    if split == "test":  # of validation's many checkpoints single p-values would mislead
        pairs = [((name, shots), (names[0], shots)) for name, shots in itertools.product(names[1:], prompts)]
        changes = [evaluation.paired_difference(records, *pair, label, greedy=True) for pair in pairs]
        p_values = evaluation.holm([change.p_value for change in changes])
        for ((name, shots), _), change, p_value in zip(pairs, changes, p_values, strict=True):
            word = evaluation.verdict(change.value, p_value)
            print(f"{name} against {names[0]}, {shots}-shot, strict and greedy: {change}, {word} (p {p_value:.2g})")
    if drawn:
        curves = evaluation.pass_curves(records, label, chosen.prompt.shots)
        for name, curve in curves.items():
            print(f"{name}, strict:", "  ".join(f"pass@{k} {point}" for k, point in curve.items()))
        figure = plots.pass_at_k(curves, f"{records[records.split == label].task_id.nunique()} tasks ({label})")
        figure.savefig(folder / f"pass_at_k-{label}.png")  # not among the figures that the chain draws and verifies
        print(folder / f"pass_at_k-{label}.png")


@app.command()
def verify(recipe: RecipeName = None, settings: Settings = [], run: RunName = None) -> None:  # noqa: B006
    """Make a finished run's tables and figures again from its records and compare the bytes."""
    parameters, chosen = _recipe(recipe, settings, run)
    from grpo_utils.show import verification

    for file in verification.verify_run(chosen, parameters):
        print(f"same bytes: {file}")


@app.command()
def figures(
    recipe: RecipeName = None,
    settings: Settings = [],  # noqa: B006
    run: RunName = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Copy them to FOLDER/<run> too, with a README.md.")
    ] = None,
) -> None:
    """Draw the figures of a finished run again: grpo figures --to figures"""
    _, chosen = _recipe(recipe, settings, run)
    folder = runs.existing_run(chosen)
    import matplotlib

    matplotlib.use("agg")
    from grpo_utils.show import plots

    with runs.hold_lock(folder):
        drawn = plots.draw_figures(chosen, folder)
        runs.update_manifest(folder, [*drawn, *(path.with_suffix(".svg") for path in drawn)])
    if to:
        plots.publish_figures(drawn, to / chosen.name, f"grpo {shlex.join(sys.argv[1:])}")
    print(*drawn, sep="\n")


@app.command()
def rollouts(
    recipe: RecipeName = None,
    settings: Settings = [],  # noqa: B006
    run: RunName = None,
    step: Annotated[list[int], typer.Option(help="Of which steps, repeatable; default: some of all.")] = [],  # noqa: B006
    only: Annotated[
        Literal["passed", "failed", "cut-off"] | None, typer.Option(help="Which completions; default: all.")
    ] = None,
    by: Annotated[
        str, typer.Option("--sort", help="What comes first: a reward's name, reward, advantage or tokens.")
    ] = "advantage",
) -> None:
    """Write what the policy wrote in training as a page to read: grpo rollouts --step 3 --only failed --sort tests"""
    _, chosen = _recipe(recipe, settings, run)
    folder = runs.existing_run(chosen)
    from grpo_utils.show import rollouts as pages

    print(pages.write_rollouts(chosen, folder, steps=step, only=only, by=by))


@app.command()
def export(
    recipe: RecipeName = None,
    settings: Settings = [],  # noqa: B006
    run: RunName = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Folder in checkpoints/; default: the one chosen on validation.")
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        typer.Option(help="Of the exported weights; default: the recipe's."),
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="USER/MODEL", help="Upload it to this repository, private at first.")
    ] = None,
) -> None:
    """Merge a checkpoint into its base, with a model card: grpo export --checkpoint checkpoint-16"""
    _, chosen = _recipe(recipe, settings, run)
    folder = runs.existing_run(chosen)
    from grpo_utils import evaluation
    from grpo_utils.show import export as exports

    if not checkpoint:
        runs.need_file(folder / "results.csv", "05_checkpoint_evaluation")
        records = evaluation.load_records(folder)
        checkpoint = evaluation.choose_checkpoint(records, chosen.prompt.shots)
        if (last := runs.checkpoints(folder)[-1].name) not in set(records.checkpoint):
            print(
                f"{last} is not measured yet (grpo reproduce --run {folder.name}); of those before, it is {checkpoint}"
            )
    merged, share = exports.merge_adapter(chosen, folder, checkpoint, dtype)
    print(f"rounded to {dtype or chosen.model.dtype}, the weights keep {share:.1%} of what training changed")
    if share < 0.95:
        print("--dtype float32 keeps all of it, in twice the size")
    print(f"{merged}: use it as model.name, or with transformers' from_pretrained")
    if push:
        print(exports.push_model(merged, push))


@app.command()
def memory(
    recipe: RecipeName = None,
    settings: Settings = [],  # noqa: B006
    card: Annotated[float, typer.Option(metavar="GB", help="Memory of the GPU.")] = 24.0,
) -> None:
    """Print what a recipe needs on one GPU, and which setting to lower if that is too much."""
    _, chosen = _recipe(recipe, settings, None)
    from grpo_utils import policy, training

    training.check_arguments(chosen)
    needed = training.estimate_memory(chosen, policy.load_model_config(chosen.model), card * training.GB)
    print(needed)
    print(training.advice(chosen, needed, card * training.GB) or f"fits a card with {card:g} GB")


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def sandbox(context: typer.Context) -> None:
    """Show what protects this machine, with a self-test, or check a file: grpo sandbox f.py "assert f(1) == 2" """
    from grpo_utils.sandbox.__main__ import main as check

    raise SystemExit(check(context.args))


@data.command()
def download(name: str) -> None:
    """Write a data set from the hub to data/: grpo tasks download mbpp"""
    from grpo_utils import tasks

    if name not in tasks.HUB:
        raise UserError(f"There is no {name!r} to download{runs.nearest(name, tasks.HUB)}: {', '.join(tasks.HUB)}.")
    tasks.download_dataset(name)


@data.command()
def show(name: str, split: str, imports: Imports = []) -> None:  # noqa: B006
    """Print a split as JSON lines: grpo tasks show starter test"""
    from grpo_utils import tasks

    runs.import_files({}, [str(path) for path in imports], Path())
    for task in tasks.load_tasks(name, split):
        print(json.dumps(asdict(task)))


def _recipe(
    name: str | None, settings: list[str], run: str | None, imports: Sequence[Path] = (), reads_data: bool = False
) -> tuple[dict[str, Any], Recipe]:
    """What a command line asks for: papermill's parameters, and the recipe that they lead to."""
    path, overrides = commands.parameters_of(name, settings, run, imports)
    recipe = runs.load_recipe(path, overrides)
    if reads_data and not recipe.without_gpu:  # else what is missing first is the GPU
        from grpo_utils import tasks

        tasks.check_data(recipe)
    return {"RECIPE": path, "OVERRIDES": overrides}, recipe


def main() -> None:
    """The console script. Every line is written as it comes, so that a log can be watched."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    commands.run_command(_call, trains=sys.argv[1:2] in (["reproduce"], ["train"], ["extend"]))


def _call() -> None:
    try:
        app()
    except SystemExit as end:
        if end.code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt from None
        if end.code:  # typer ends a command that is done in this way too
            raise


if __name__ == "__main__":
    main()
