"""The folder of a run: when a chapter is done, who may read it without a GPU, and where things are looked for."""

import itertools
from pathlib import Path

import nbformat
import pytest
import torch

from grpo_utils import runs
from grpo_utils.__main__ import app
from grpo_utils.runs import RunError, chain

SMOKE = runs.load_recipe("smoke-code")

# ------------------------------------------------------------------------------------------------- a chapter's stamp


def notebook(path: Path, prose: str, *sources: str) -> Path:
    cells = [nbformat.v4.new_markdown_cell(prose), *map(nbformat.v4.new_code_cell, sources)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.mark.parametrize(
    ("prose", "sources", "same"),
    [
        ("# Title", ["x = 1  # one", "%time y = await x"], True),
        ("# Tilte", ["x = 1", "%time y = await x"], True),
        ("# Title", ["x = 2", "%time y = await x"], False),
        ("# Title", ["x = 1", "%timeit y = await x"], False),
        ("# Title", ["x = 1", "!ls", "%time y = await x"], False),
        ("# Title", ["x = 1\n%time y = await x"], False),  # in one cell
        ("# Title", ["x = (", "%time y = await x"], False),
        ("# Title", ["x = 1", "\tawait x$\n  y\n"], False),  # no Python for IPython either
    ],
)
def test_a_notebook_s_stamp_is_that_of_its_code(prose, sources, same, tmp_path):
    first = notebook(tmp_path / "01_a.ipynb", "# Title", "x = 1", "%time y = await x")
    second = notebook(tmp_path / "01_b.ipynb", prose, *sources)
    stamps = [chain.stamp_of(path, SMOKE, "data") for path in (first, second)]
    assert (stamps[0] == stamps[1]) == same


# ------------------------------------------------------------------------------------- reading a run without its GPU

FOR_GPU = runs.load_recipe("smoke-code", {"without_gpu": "cpu-code", "name": "far"})


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("name", ["figures", "rollouts", "verify", "export"])
def test_a_command_that_reads_says_that_there_is_no_run_and_makes_none(name, no_gpu, tmp_path):
    with pytest.raises(RunError, match=r"^There is no run 'llama3-8b-mbpp-a100' in .*: make it first .*\.$"):
        app([name, "--recipe", "llama3-8b-mbpp-a100"], standalone_mode=False)
    assert not runs.outputs_folder().exists()


def test_a_run_of_a_gpu_is_read_without_one(no_gpu):
    with pytest.raises(RunError, match="needs a GPU"):
        runs.start_run(FOR_GPU)
    with pytest.MonkeyPatch.context() as there:
        there.setattr(torch.cuda, "is_available", lambda: True)
        run = runs.start_run(FOR_GPU)
    assert runs.existing_run(FOR_GPU) == run
    (run / "recipe.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match="holds a run with other settings"):
        runs.existing_run(FOR_GPU)


# ------------------------------------------------------------------------------------------- a run's own recipe


@pytest.mark.parametrize(
    ("command", "first"),
    [
        ("verify", "show.verification.verify_run"),
        ("figures", "show.plots.draw_figures"),
        ("rollouts", "show.rollouts.write_rollouts"),
        ("export --checkpoint checkpoint-2", "show.export.merge_adapter"),
        ("evaluate", "evaluation.plan_evaluation"),
        ("train", "training.check_before_start"),
        ("reproduce", "training.check_before_start"),
    ],
)
def test_a_run_that_is_named_alone_has_its_own_recipe(command, first, monkeypatch):
    own = runs.load_recipe("smoke-code", {"name": "mine", "seed": 7, "grpo.learning_rate": 1e-5})
    run, used = runs.start_run(own), []

    def note(recipe: runs.Recipe, *rest: object, **more: object) -> None:
        used.append(recipe)
        raise RunError("far enough")

    monkeypatch.setattr(f"grpo_utils.{first}", note)
    with pytest.raises(RunError, match="far enough"):
        app([*command.split(), "--run", "mine"], standalone_mode=False)
    assert used == [own]
    with pytest.raises(RunError, match=rf"{run} holds a run with other settings: --run mine without --recipe and"):
        runs.existing_run(runs.load_recipe("smoke-code", {"name": "mine"}))


def test_a_run_that_goes_on_by_its_name_has_the_stamps_that_its_command_gave_it():
    own = runs.load_recipe("smoke-code", {"name": "mine", "seed": 7})
    run = runs.start_run(own)
    assert chain.stamps(runs.load_recipe(run / "recipe.yaml"), "data") == chain.stamps(own, "data")


@pytest.mark.parametrize("name", ["verify", "figures", "rollouts", "export", "evaluate"])
def test_a_mistyped_run_is_told_the_nearest_name_and_not_made(name):
    run = runs.start_run(runs.load_recipe("smoke-code", {"name": "funcs"}))
    with pytest.raises(RunError, match=r"^There is no run 'funs' \(did you mean 'funcs'\?\) in "):
        app([name, "--run", "funs"], standalone_mode=False)
    assert [path.name for path in run.parent.iterdir()] == ["funcs"]


# ---------------------------------------------------------------------------------------------------- starting over


def test_every_notebook_that_keeps_something_is_one_of_the_chain():
    assert set(chain.KEPT) <= {path.stem for path in chain.list_notebooks()}


ADAPTERS = ("warm-start", "checkpoint-2")
GATE = "validation-8-at-0.7"
SPLITS = ("train", GATE, "validation", "test", "human-eval")
EVALUATED = {f"evaluations/{name}.{split}.1shot.json" for name in ADAPTERS for split in ("validation", "test")}
RESULTS = {"results.csv", "results.md"}
CHECKPOINTS = {f"checkpoints/{name}" for name in ("checkpoint-2", "completions")}
TRAINED = {
    *("training_log.jsonl", "rollouts.html", "teacher.sqlite", "teacher.sqlite-wal", "teacher", *RESULTS),
    *(f"evaluations/checkpoint-2.{split}.1shot.json" for split in ("validation", "test", "human-eval")),
}
STARTED = {
    *("checkpoints", "checkpoints/made_with.txt", "checkpoints/warm-start", "warm_start_log.jsonl"),
    *(f"evaluations/warm-start.{split}.1shot.json" for split in SPLITS),
    *("evaluations/base.train.1shot.json", f"evaluations/base.{GATE}.1shot.json"),
}


def finished(folder: Path) -> Path:
    """A run's folder with what all notebooks leave in it, and extra evaluations by its user."""
    for name in (
        *("recipe.yaml", "environment.json", "lock", "manifest.json", "figures/lengths.svg", "mine.txt"),
        *(name for name in TRAINED if "." in name),
        *(f"checkpoints/{name}/weights" for name in ("warm-start", "checkpoint-2", "completions")),
        *("checkpoints/made_with.txt", "warm_start_log.jsonl"),
        *(f"evaluations/{name}.{split}.1shot.json" for name in ("base", "warm-start") for split in SPLITS),
        *("from_scratch/server.py", "reward_hacking/tests/log", "dpo/pairs.jsonl", "teacher/training_log.jsonl"),
        *(f"notebooks/{path.stem}.stamp" for path in chain.list_notebooks()),
    ):
        runs.write_file(folder / name, "x")
    return folder


@pytest.mark.parametrize(
    ("only", "first", "gone"),
    [
        ("01", None, set()),
        ("02", None, {"evaluations/base.validation.1shot.json", "evaluations/base.test.1shot.json"}),
        ("03", None, STARTED | CHECKPOINTS | TRAINED),
        ("04", None, CHECKPOINTS | TRAINED),
        ("05", None, EVALUATED | RESULTS),
        (None, "04", CHECKPOINTS | TRAINED | EVALUATED),
        ("06", None, {"from_scratch"}),
        (None, "07", {"reward_hacking", "dpo", "teacher"}),
    ],
)
def test_forced_notebooks_make_again_what_they_made_and_nothing_else(only, first, gone, monkeypatch):
    run, chosen, executed = finished(runs.outputs_folder() / SMOKE.name), chain.choose_notebooks(only, first), []
    (run / "recipe.yaml").write_text(SMOKE.to_yaml())
    monkeypatch.setattr(chain, "execute_notebook", lambda path, run, parameters: executed.append(contents(run)))
    before = contents(run)
    chain.reproduce(SMOKE, {}, "data", chosen, forced=True)
    assert len(executed) == len(chosen)
    stamps = {f"notebooks/{path.stem}.stamp" for path in chain.list_notebooks() if path.stem >= chosen[0].stem}
    assert before - executed[0] == gone | stamps


def contents(run: Path) -> set[str]:
    """What is in a run's folder, and in those of its folders that all notebooks share."""
    folders = [run / name for name in ("evaluations", "notebooks", "checkpoints") if (run / name).is_dir()]
    found = itertools.chain(run.iterdir(), *(folder.iterdir() for folder in folders))
    return {str(path.relative_to(run)) for path in found}


def test_what_was_linked_into_a_run_is_not_removed_with_it(tmp_path):
    run, elsewhere = finished(tmp_path / "run"), tmp_path / "big-disk"
    (run / "checkpoints").rename(elsewhere)
    (run / "checkpoints").symlink_to(elsewhere)
    runs.remove_files([run / "checkpoints"])
    assert not (run / "checkpoints").is_symlink()
    assert (elsewhere / "checkpoint-2" / "weights").is_file()


def test_the_records_of_a_checkpoint_that_only_a_signal_asked_for_go_with_it(tmp_path):
    for step in (2, 3):
        runs.write_file(tmp_path / f"checkpoints/checkpoint-{step}/weights", "x")
        runs.seal_adapter(tmp_path / f"checkpoints/checkpoint-{step}")
        runs.write_file(tmp_path / f"evaluations/checkpoint-{step}.validation.1shot.json", "{}")
    (tmp_path / "checkpoints/checkpoint-3" / runs.EXTRA).touch()
    runs.drop_extra(tmp_path)
    assert [path.name for path in (tmp_path / "evaluations").iterdir()] == ["checkpoint-2.validation.1shot.json"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "model name\t: AMD EPYC\nflags\t\t: fpu avx2 avx512f avx512_bf16 sha\n",
            "AMD EPYC (avx2, avx512f, avx512_bf16)",
        ),
        ("model name\t: Old\nflags\t\t: fpu sse2\n", "Old"),
        ("processor\t: 0\nFeatures\t: fp asimd\n", "aarch64"),
    ],
)
def test_the_processor_is_named_with_what_decides_how_sums_round(written, said, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: written)
    monkeypatch.setattr(runs.folder.platform, "processor", lambda: "")
    monkeypatch.setattr(runs.folder.platform, "machine", lambda: "aarch64")
    assert runs.processor() == said


def test_a_run_and_every_benchmark_that_runs_a_model_or_the_sandbox_name_the_processor():
    run = runs.start_run(SMOKE)
    assert runs.read_json(run / "environment.json")["processor"] == runs.processor()
    for name in ("evaluation", "generation", "prompts", "sandbox", "seconds", "seeds", "training"):
        assert "processor()" in (runs.ROOT / "benchmarks" / f"{name}.py").read_text(), name


# ------------------------------------------------------------------------------------------------- where things are


def test_a_relative_folder_is_the_same_for_a_command_and_its_notebooks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", "mine")
    monkeypatch.setenv("GRPO_DATA_DIR", "data")
    code = "from grpo_utils import runs, tasks\nprint(runs.outputs_folder(), tasks.loading.folders()[0].absolute())"
    path = notebook(tmp_path / "01_a.ipynb", "# Title", code)
    runs.outputs_folder().mkdir()
    chain.execute_notebook(path, runs.outputs_folder(), {})
    (printed,) = nbformat.read(runs.outputs_folder() / "notebooks" / path.name, as_version=4).cells[1].outputs
    assert printed.text == f"{tmp_path / 'mine'} {tmp_path / 'data'}\n"
    assert runs.outputs_folder() == tmp_path / "mine"


@pytest.mark.parametrize(("named", "expected"), [("/big/cache", "/big/cache"), ("", "/me/.cache"), ("c", "/me/.cache")])
def test_the_cache_is_no_folder_of_whoever_happens_to_work_in_it(named, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/me")
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert runs.cache_folder() == Path(expected) / "grpo_utils"


def test_a_named_cache_needs_no_home(monkeypatch):
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    monkeypatch.setenv("XDG_CACHE_HOME", "/big")
    assert runs.cache_folder() == Path("/big/grpo_utils")
