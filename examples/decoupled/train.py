"""cpu-code, decoupled: a server on the same CPU generates, the trainer learns. `python examples/decoupled/train.py`

In the environment of `requirements/cpu-vllm.lock` (README.md). `--set` and `--run` as for `grpo train`; the run is
measured by `grpo reproduce --run decoupled`, which finds it trained.
"""

import argparse
import functools

from server import VllmServer, need_vllm

from grpo_utils import evaluation, runs, training
from grpo_utils.runs import commands
from grpo_utils.show.panel import Panel


def main() -> None:
    """Trains, or goes on with a training."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    commands.add_recipe_options(parser)
    options = parser.parse_args()
    recipe = runs.load_recipe(*commands.parameters_of(options.recipe, options.set, options.run or "decoupled"))
    need_vllm()
    training.check_before_start(recipe)
    run = runs.start_run(recipe)
    training.warm_start(recipe, run, on_log=Panel())
    print(evaluation.gate(recipe, run))
    training.train(recipe, run, Panel(), beside=functools.partial(VllmServer, recipe, run / "vllm.log"))


if __name__ == "__main__":
    commands.run_command(main, trains=True)
