"""Dockerfile and devcontainer say what the project needs, as far as that can be seen without Docker."""

import fnmatch
import json
import re
import tomllib

import yaml
from packaging.specifiers import SpecifierSet

from grpo_utils.runs import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
DEVCONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())


def test_the_image_has_the_python_of_the_gpu_environment_which_the_project_allows():
    (version,) = re.findall(r"^FROM python:(\d+\.\d+)-slim", DOCKERFILE, flags=re.MULTILINE)
    assert version in SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    assert f"python={version}" in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


def test_what_the_containers_call_is_there():
    targets = {*re.findall(r"^RUN make (\S+)", DOCKERFILE, flags=re.MULTILINE)}
    targets |= {json.loads(words)[1] for words in re.findall(r"^CMD (.*)", DOCKERFILE, flags=re.MULTILINE)}
    targets |= {DEVCONTAINER["postCreateCommand"].removeprefix("make ")}
    assert targets == {"install", "reproduce"}
    assert {*re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)} >= targets
    build = DEVCONTAINER["build"]
    assert (ROOT / ".devcontainer" / build["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert f" AS {build['target']}\n" in DOCKERFILE


def test_what_this_machine_made_stays_out_of_the_image():
    ignored = [line.rstrip("/").removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().splitlines()]
    for folder in (".venv", "outputs", "_site", "__pycache__"):
        assert any(fnmatch.fnmatch(folder, pattern) for pattern in ignored), folder
