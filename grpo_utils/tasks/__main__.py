"""`python -m grpo_utils.tasks download gsm8k` keeps a local copy of a data set; `... show starter test` prints one."""

import argparse
import json
from dataclasses import asdict

from grpo_utils import commands, tasks


def main() -> None:
    """Downloads or shows tasks."""
    parser = argparse.ArgumentParser(prog="python -m grpo_utils.tasks", description=main.__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    download = actions.add_parser("download", help="write a data set from the hub to data/")
    download.add_argument("name", choices=tasks.HUB)
    show = actions.add_parser("show", help="print a split as JSON lines")
    show.add_argument("name")
    show.add_argument("split", choices=tasks.SPLITS)
    arguments = parser.parse_args()
    if arguments.action == "download":
        tasks.download(arguments.name)
        return
    for task in tasks.load(arguments.name, arguments.split):
        print(json.dumps(asdict(task)))


if __name__ == "__main__":
    commands.run(main)
