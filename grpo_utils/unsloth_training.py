"""`grpo_utils.training` in a process that imports Unsloth first: it patches TRL, transformers and PEFT as they load.

`training` starts it for recipes that want Unsloth: `python -m grpo_utils.training --recipe llama3-8b-mbpp-24gb`.
"""

import importlib.util
import os

from grpo_utils import commands, launch
from grpo_utils.errors import UserError


def main() -> None:
    """Trains the policy of a recipe with Unsloth."""
    if importlib.util.find_spec("unsloth") is None:
        raise UserError(
            "The recipe wants Unsloth, which is not installed: install the GPU profile, or set model.engine to "
            "transformers and grpo.use_vllm to false."
        )
    os.environ[launch.LAUNCHED] = "1"
    os.environ.setdefault("UNSLOTH_VLLM_STANDBY", "1")  # read while Unsloth is imported
    import unsloth  # type: ignore[import-not-found]  # noqa: F401

    from grpo_utils import training

    training.main()


if __name__ == "__main__":
    commands.run(main)
