"""Installing a lock file into .venv: `make install`, before which nothing is there but Python and perhaps uv.

So this file needs the standard library alone, and its syntax is such that an old Python, which many machines call
`python3`, reads it and says which Python is needed.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from http.client import HTTPException
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own, whose builds carry no CUDA
PATIENCE = 3.0  # seconds in which the index has to answer
PIP_PLACES = re.compile(r"\.(?:index-url|extra-index-url|find-links|no-index)=")
UV_PLACES = re.compile(r"^\W*(?:UV_)?(?:\w+[-_])?(?:index|index.url|find.links|torch.backend)\W*(?:=|$)", re.I | re.M)


def main() -> None:
    """Makes .venv what its lock files say; does nothing when it is that already.

    Raises:
        SystemExit: this Python does not fit, or something could not be installed.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--site", action="store_true", help="install site.lock too")
    parser.add_argument("--this-python", action="store_true", help="make .venv anew if it is of another Python")
    options = parser.parse_args()
    locks = [ROOT / "requirements" / name for name in ("cpu.lock", "site.lock")[: 1 + options.site]]
    stamp = VENV / ".installed"
    found = json.loads(stamp.read_text() or "{}") if stamp.is_file() else {}
    here = {"folder": str(ROOT), "python": "{}.{}".format(*sys.version_info)}
    fits = all(found.get(key) == here[key] for key in ("folder", "python")[: 1 + options.this_python])
    wanted = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (*locks, ROOT / "pyproject.toml")}
    # its programs name its folder; a link of bin/ leads nowhere once its Python was removed
    if fits and (VENV / "bin" / "python").exists():
        if wanted.items() <= found.items():
            return
        stamp.unlink()  # a .venv without it was begun and not finished
    else:
        found = here
        make_venv()
    install(locks)
    stamp.write_text(json.dumps({**found, **wanted}, indent=1) + "\n")


def make_venv() -> None:
    """Makes an empty .venv of this Python; what an interrupted pip left in an old one may look whole and not be."""
    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        sys.exit("Python 3.11 to 3.13 is needed: make PYTHON=python3.12 ...")
    anew = " anew, because it was not finished, was moved or is of another Python" if VENV.exists() else ""
    print(f"installing into {VENV.name}{anew}: about two minutes", flush=True)
    if shutil.which("nvidia-smi"):
        print("this is the CPU profile, which is not made for this machine's GPU; docs/gpu.md has the one that is")
    run([sys.executable, "-m", "venv", "--clear", str(VENV)])


def install(locks: "list[Path]") -> None:
    """Installs lock files, the first of which pins torch, and this package into .venv."""
    python = str(VENV / "bin" / "python")
    uv, pip_is_configured = shutil.which("uv"), is_configured_pip(python)
    if uv and (not pip_is_configured or is_configured_uv()):  # uv does not read what pip was told
        # where several indexes are configured, all are asked, as pip does
        command = [uv, "pip", "install", "--quiet", "--python", python, "--index-strategy", "unsafe-best-match"]
        configured = is_configured_uv()
    else:
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        configured = pip_is_configured
    run([*command, *torch_arguments(locks[0], configured)])
    run([*command, "--no-deps", *(word for lock in locks for word in ("--requirement", str(lock)))])
    run([*command, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])
    # pip would do it on one core; what does not compile, such as templates, is not meant to
    subprocess.call([python, "-m", "compileall", "-qq", "-j", "0", str(VENV / "lib")])


def torch_arguments(lock: Path, configured: bool) -> "list[str]":
    """Returns what pip or uv has to be told to install the lock's torch, and prints where it comes from.

    On Linux the build that pip finds by itself depends on gigabytes of CUDA. PyTorch's CPU index has builds without;
    the variable TORCH_INDEX names another index, or none when it is empty.

    Args:
        lock: pins torch and, for a build without CUDA, all that it depends on.
        configured: whether the user has said where packages come from, which then holds for torch too.
    """
    (version,) = re.findall(r"^torch==(\S+)$", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    index = os.environ.get("TORCH_INDEX", "" if configured else TORCH_INDEX)
    why = no_answer(index) if index else ""
    if index and not why:
        print(f"torch {version} comes from {index}", flush=True)
        return ["--no-deps", "--index-url", index, f"torch=={version}"]
    own = "where your configuration says" if configured else "the default index, with gigabytes of CUDA on Linux"
    if index:
        reason = f"{index} did not answer ({why})"
    elif "TORCH_INDEX" in os.environ:
        reason = "TORCH_INDEX is empty"
    else:
        reason = f"TORCH_INDEX={TORCH_INDEX} would ask PyTorch's CPU index"
    print(f"torch {version} comes from {own}: {reason}", flush=True)
    # with its dependencies, because its build decides what they are
    return ["--constraint", str(lock), f"torch=={version}"]


def no_answer(index: str) -> str:
    """Returns why an index does not answer, or "" if it does.

    It is asked in a thread, since the timeout of urllib neither bounds the search for a name nor the whole.
    """
    reason = [f"nothing within {PATIENCE:g} s"]

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=PATIENCE):
                reason[0] = ""
        except (OSError, HTTPException, ValueError) as error:  # no network, no web server, no address
            reason[0] = str(getattr(error, "reason", error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return reason[0]


def is_configured_pip(python: str) -> bool:
    """Whether pip's files or variables say where packages come from."""
    return bool(PIP_PLACES.search(subprocess.check_output([python, "-m", "pip", "config", "list"]).decode()))


def is_configured_uv() -> bool:
    """Whether uv's files or variables say where packages come from."""
    folders = ["/etc/uv", f"{os.environ.get('XDG_CONFIG_HOME') or os.path.expanduser('~/.config')}/uv"]
    files = [Path(folder, "uv.toml") for folder in folders]
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    return any(map(UV_PLACES.search, [*texts, *(name for name in os.environ if name.startswith("UV_"))]))


def run(command: "list[str]") -> None:
    """Runs a command, and ends with a sentence if it fails, whose reason it has printed itself."""
    if subprocess.call(command):
        sys.exit(f"not installed, for the reason above ({' '.join(command[:4])} ...): the same command tries again")
