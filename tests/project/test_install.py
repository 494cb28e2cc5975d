"""`make install`: where torch comes from, which tool installs, and what becomes of a .venv that is not whole."""

import ast
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import install
from grpo_utils.runs import ROOT

BACKEND = """
import shutil

def build_editable(folder, *rest):
    return shutil.copy("grpo_utils-0.1.0-py3-none-any.whl", folder).rpartition("/")[2]
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def wheel(folder, name: str, version: str, *needs: str) -> Path:
    """Writes a wheel that holds one empty module."""
    module = name.replace("-", "_")
    path = Path(folder) / f"{module}-{version}-py3-none-any.whl"
    info = f"{module}-{version}.dist-info"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {need}" for need in needs),
    ]
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{module}.py", "")
        file.writestr(f"{info}/METADATA", "\n".join([*lines, ""]))
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    """Address of a server with two indexes: /cpu has torch without CUDA, /all torch with it and the rest."""
    folder = tmp_path_factory.mktemp("indexes")
    for index in ("cpu", "all"):
        (folder / index).mkdir()
    wheel(folder / "cpu", "torch", "2.13.0+cpu")
    for name, version, *needs in [("torch", "2.14.0", "cuda"), ("cuda", "1"), ("tiny", "1.0"), ("tiny", "1.1")]:
        wheel(folder / "all", name, version, *needs)

    class Index(BaseHTTPRequestHandler):
        def do_GET(self):
            index, name = self.path.strip("/").split("/")[:2]
            if index == "slow":
                time.sleep(2 * install.PATIENCE)
                return  # nobody waits for an answer by then
            if name.endswith(".whl"):
                body = (folder / index / name.replace("%2B", "+")).read_bytes()
            else:
                links = [path.name for path in (folder / index).glob(f"{name}-*.whl")]
                body = "".join(f'<a href="/{index}/{link}">{link}</a>' for link in links).encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(autouse=True)
def nobody_s_machine(monkeypatch, tmp_path):
    """No pip or uv configuration of this machine, and no uv, is seen by a test."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "TORCH_INDEX", "MAKE", "MFLAGS", "PYTHONPATH")) or name.lower().endswith(
            "_proxy"
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    here = tmp_path / "programs"
    here.mkdir()
    for name in ("make", "sh", "env"):
        (here / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(here))
    return here


@pytest.fixture
def project(tmp_path):
    """A tree with the real Makefile and install.py, small locks, and a package that needs no setuptools."""
    folder = tmp_path / "project"
    for name in ("Makefile", "install/__init__.py", "install/__main__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "requirements").mkdir()
    (folder / "requirements" / "cpu.lock").write_text("# all\ntiny==1.0\ntorch==2.13.0\n")
    (folder / "requirements" / "site.lock").write_text("tinier==1.0\n")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(BACKEND)
    wheel(folder, "grpo-utils", "0.1.0")
    return folder


def make(project: Path, *arguments: str) -> tuple[int, str]:
    """Runs `make install` there; returns its status and what it prints."""
    command = ["make", "install", f"PYTHON={sys.executable}", *arguments]
    done = subprocess.run(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def packages(project: Path) -> dict[str, str]:
    """Name -> version of what the project's .venv holds, pip and setuptools aside."""
    python = str(project / ".venv" / "bin" / "python")
    listed = json.loads(subprocess.check_output([python, "-m", "pip", "list", "--format=json"]))
    return {package["name"]: package["version"] for package in listed if package["name"] not in ("pip", "setuptools")}


def refused() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_make_install_from_an_empty_folder_to_a_changed_lock(project, indexes, monkeypatch, nobody_s_machine):
    """One .venv for all, because pip and venv take seconds."""
    lock = project / "requirements" / "cpu.lock"
    monkeypatch.setenv("PIP_INDEX_URL", f"{indexes}/all")

    # torch from the index that answers, all else from pip's own
    status, said = make(project, f"TORCH_INDEX={indexes}/cpu")
    assert (status, f"torch 2.13.0 comes from {indexes}/cpu\n" in said) == (0, True), said
    assert packages(project) == {"torch": "2.13.0+cpu", "tiny": "1.0", "grpo-utils": "0.1.0"}
    assert make(project) == (0, "")

    # no answer: torch from pip's own index too, with what it needs
    lock.write_text("tiny==1.0\ntorch==2.14.0\n")
    status, said = make(project, f"TORCH_INDEX={refused()}")
    assert re.search(
        r"^torch 2\.14\.0 comes from where your configuration says: .* did not answer \(.*refused\)$",
        said,
        re.MULTILINE,
    )
    assert packages(project) == {"torch": "2.14.0", "cuda": "1", "tiny": "1.0", "grpo-utils": "0.1.0"}

    # uv where it is there; a stand-in that passes its arguments on to pip, since the locks have no uv
    lock.write_text("tiny==1.1\ntorch==2.14.0\n")
    stand_in(nobody_s_machine / "uv")
    monkeypatch.setenv("UV_INDEX_URL", f"{indexes}/all")
    status, said = make(project)
    assert (status, said.count("uv installs"), "where your configuration says" in said) == (0, 3, True), said
    assert packages(project) == {"torch": "2.14.0", "cuda": "1", "tiny": "1.1", "grpo-utils": "0.1.0"}

    # pip, if it alone knows where packages are; its error is shown, and the same command is not content with the rest
    monkeypatch.delenv("UV_INDEX_URL")
    lock.write_text("torch==2.14.0\nmissing==7\n")
    status, said = make(project)
    assert (status == 0, "uv installs" in said) == (False, False), said
    assert "No matching distribution found for missing==7" in said
    assert "the same command tries again" in said
    assert not (project / ".venv" / ".installed").exists()


def stand_in(uv: Path) -> None:
    """Writes a uv that insists on the options of `install` and lets pip install."""
    uv.write_text(
        '#!/bin/sh\n[ "$1 $2 $3 $4 $6 $7" = "pip install --quiet --python --index-strategy unsafe-best-match" ] '
        '|| exit 9\necho "uv installs"\npython=$5\nshift 7\n'
        'exec "$python" -m pip install --quiet "$@"\n'
    )
    uv.chmod(0o755)


@pytest.mark.parametrize("index", ["/slow", "refused", "/nothing", "no address"])
def test_an_index_that_does_not_answer_is_given_up_after_three_seconds(index, indexes):
    begun = time.monotonic()
    assert install.no_answer(refused() if index == "refused" else f"{indexes}{index}" if "/" in index else index) != ""
    assert time.monotonic() - begun < install.PATIENCE + 1


def test_a_name_that_is_looked_up_for_ever_is_given_up_too(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **more: time.sleep(2 * install.PATIENCE) or [])
    assert install.no_answer("http://never.invalid") == "nothing within 3 s"


@pytest.mark.parametrize(
    ("variable", "configured", "asked", "said"),
    [
        (None, False, install.TORCH_INDEX, f"comes from {install.TORCH_INDEX}\n"),
        (None, True, None, f"comes from where your configuration says: TORCH_INDEX={install.TORCH_INDEX} would ask"),
        ("http://mine", True, "http://mine", "comes from http://mine\n"),
        ("", False, None, "the default index, with gigabytes of CUDA on Linux: TORCH_INDEX is empty"),
    ],
)
def test_which_index_is_asked_for_torch(variable, configured, asked, said, tmp_path, monkeypatch, capsys):
    questions = []
    monkeypatch.setattr(install, "no_answer", lambda index: questions.append(index) or "")
    if variable is not None:
        monkeypatch.setenv("TORCH_INDEX", variable)
    lock = tmp_path / "cpu.lock"
    lock.write_text("torch==2.13.0\n")
    arguments = install.torch_arguments(lock, configured)
    assert questions == ([asked] if asked else [])
    own = ["--constraint", str(lock), "torch==2.13.0"]
    assert arguments == (["--no-deps", "--index-url", asked, "torch==2.13.0"] if asked else own)
    printed = capsys.readouterr().out
    assert said in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("setting", ["index-url", "extra-index-url", "find-links"])
def test_what_pip_is_told_by_a_file_or_a_variable_is_its_configuration(setting, tmp_path, monkeypatch):
    assert not install.is_configured_pip(sys.executable)
    monkeypatch.setenv(f"PIP_{setting.upper().replace('-', '_')}", "http://mine")
    assert install.is_configured_pip(sys.executable)
    monkeypatch.delenv(f"PIP_{setting.upper().replace('-', '_')}")
    file = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    file.write_text(f"[global]\ntimeout = 60\n{setting} = http://mine\n")
    assert install.is_configured_pip(sys.executable)


@pytest.mark.parametrize(
    ("variable", "text", "configured"),
    [
        ("UV_INDEX_STRATEGY", 'index-strategy = "first-index"\nlink-mode = "copy"\n', False),
        ("UV_EXTRA_INDEX_URL", "", True),
        ("UV_TORCH_BACKEND", "", True),
        ("UV_LINK_MODE", '[[index]]\nurl = "http://mine"\n', True),
    ],
)
def test_what_uv_is_told_by_a_file_or_a_variable_is_its_configuration(
    variable, text, configured, tmp_path, monkeypatch
):
    monkeypatch.setenv(variable, "x")
    folder = tmp_path / "config" / "uv"
    folder.mkdir(parents=True)
    (folder / "uv.toml").write_text(text)
    assert install.is_configured_uv() is configured


@pytest.fixture
def acted(project, monkeypatch):
    """A finished .venv, and a function that installs again and returns what was done: "new", "packages" or nothing."""
    done: list[str] = []

    def run(command: list[str]) -> None:
        done.append("new")
        shutil.rmtree(install.VENV, ignore_errors=True)
        (install.VENV / "bin").mkdir(parents=True)
        (install.VENV / "bin" / "python").touch()

    monkeypatch.setattr(install, "ROOT", project)
    monkeypatch.setattr(install, "VENV", project / ".venv")
    monkeypatch.setattr(install, "run", run)
    monkeypatch.setattr(install, "install", lambda locks: done.extend(lock.name for lock in locks))

    def again(*options: str) -> list[str]:
        done.clear()
        monkeypatch.setattr(sys, "argv", ["install", *options])
        install.main()
        return done

    assert again() == ["new", "cpu.lock"]
    assert again() == []
    return again


def test_an_interrupted_install_begins_anew(acted, monkeypatch):
    def interrupt(locks):
        raise KeyboardInterrupt

    (install.ROOT / "requirements" / "cpu.lock").write_text("torch==2.13.1\n")
    with monkeypatch.context() as interrupted:
        interrupted.setattr(install, "install", interrupt)
        with pytest.raises(KeyboardInterrupt):
            acted()
    assert acted() == ["new", "cpu.lock"]


def test_a_venv_whose_python_was_removed_is_made_anew(acted, tmp_path):
    python = install.VENV / "bin" / "python"
    python.unlink()
    python.symlink_to(tmp_path / "removed")
    assert acted() == ["new", "cpu.lock"]


def test_a_changed_lock_is_installed_over_what_is_there(acted):
    (install.ROOT / "requirements" / "cpu.lock").write_text("torch==2.13.1\n")
    assert acted() == ["cpu.lock"]
    assert acted() == []


def test_the_site_s_packages_are_added_once_and_stay(acted):
    assert acted("--site") == ["cpu.lock", "site.lock"]
    assert acted("--site") == acted() == []


def test_a_moved_venv_is_made_anew(acted, monkeypatch):
    moved = install.ROOT.with_name("moved")
    install.ROOT.rename(moved)
    monkeypatch.setattr(install, "ROOT", moved)
    monkeypatch.setattr(install, "VENV", moved / ".venv")
    assert acted() == ["new", "cpu.lock"]


def test_a_moved_venv_of_another_python_is_of_this_one_afterwards(acted, monkeypatch):
    stamp = install.VENV / ".installed"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "folder": "/elsewhere", "python": "3.2"}))
    assert acted() == ["new", "cpu.lock"]
    assert acted("--this-python") == []


def test_another_python_makes_it_anew_only_when_it_is_asked_for(acted, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 13 if sys.version_info[1] != 13 else 12, 0))
    assert acted() == []
    assert acted("--this-python") == ["new", "cpu.lock"]
    assert acted("--this-python") == []
    monkeypatch.setattr(sys, "version_info", (3, 9, 0))
    assert acted() == []
    with pytest.raises(SystemExit, match=r"3\.11 to 3\.13 is needed"):
        acted("--this-python")


def test_an_old_python_reads_the_file_and_says_which_one_is_needed():
    for path in ("install/__init__.py", "install/__main__.py"):
        ast.parse((ROOT / path).read_text(encoding="utf-8"), feature_version=(3, 7))


def test_a_gpu_s_owner_is_told_that_this_is_not_its_profile(acted, capsys, nobody_s_machine):
    (nobody_s_machine / "nvidia-smi").symlink_to("/bin/true")
    (install.VENV / ".installed").unlink()
    assert acted() == ["new", "cpu.lock"]
    assert "docs/gpu.md" in capsys.readouterr().out
