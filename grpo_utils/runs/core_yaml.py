"""YAML as its version 1.2 reads it (the core schema), and as people expect it: `5e-4` is a number, `on` is a text.

PyYAML reads version 1.1, in which `5e-4` is a text, `off` is false, `010` is eight, `1:30` is ninety, and of a key that
is there twice the last one counts silently.
"""

import re
from typing import Any

import yaml

CORE = {  # the types of plain words, and the characters with which these begin
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`, which adds another block's keys; 1.2 leaves it to the reader


class _Loader(yaml.SafeLoader):
    """Knows the plain words of `CORE` and `<<`, and refuses a block that has a key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        own, seen = [key for key, _ in node.value if key.tag != MERGE], set()
        mapping = super().construct_mapping(node, deep)
        for key in own:
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise ValueError(f"the key {name!r} is there a second time on line {key.start_mark.line + 1}")
            seen.add(name)
        return mapping

    def construct_yaml_int(self, node: Any) -> int:
        text = self.construct_scalar(node)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


class _Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 would take for something else."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = "|" if "\n" in data else None  # a program is to be read
        if re.search("[\x85\u2028\u2029]", data):  # line ends that PyYAML would write as they are
            style = '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_Loader.yaml_implicit_resolvers = {}  # not those of 1.1
_Loader.add_implicit_resolver(MERGE, re.compile(r"<<\Z"), ["<"])
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Dumper.add_representer(str, _Dumper.represent_str)
for _type, (_pattern, _first) in CORE.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", re.compile(rf"(?:{_pattern})\Z"), _first)


def load_yaml(text: str | bytes) -> Any:
    """Returns what a YAML text says; a key that is there twice, and much else with a wrong tag, raises a ValueError.

    Example:
        >>> load_yaml("{rate: 5e-4, version: '5e-4', answer: no, seed: 007}")
        {'rate': 0.0005, 'version': '5e-4', 'answer': 'no', 'seed': 7}
    """
    return yaml.load(text, Loader=_Loader)


def dump_yaml(value: Any) -> str:
    """Returns the YAML text of nested dicts and lists, which this and any other reader reads back to the same."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
