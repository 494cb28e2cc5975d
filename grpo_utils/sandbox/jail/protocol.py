"""The formats that the trainer, the judge, the zygote and its children share.

Three kinds of socket. The trainer and a judge exchange `LENGTH` and JSON. The control socket leads from the judge to
the zygote: `START` goes in with the descriptors of a child, `KILL` ends the child, `REPORT` comes back once per
child. The connection lasts for one check and leads to its child: messages (`LENGTH`, then data) go in, frames
(`HEADER`, then a payload) come back.
"""

import struct

START, KILL = b"s", b"k"
REPORT = struct.Struct("<cidd")  # how the child ended, its wait status, CPU seconds, wall-clock seconds
EXITED, KILLED, NOT_STARTED = b"e", b"t", b"n"

LENGTH = struct.Struct("<I")
HEADER = struct.Struct("<cI")  # kind and length of the payload
VALUE = b"v"  # a call returned, or the module body ran to its end
RAISED = b"x"  # the same raised
OPAQUE = b"q"  # a call returned what is not plain data; nothing follows
CALLBACK = b"c"  # the candidate calls a function of the tests
PRINTED = b"o"  # part of the standard output

MAX_STDOUT = 10_000  # bytes of standard output that are kept
MAX_CAPTURED = 200_000  # bytes of it that tests can see
MAX_SCRIPT_OUTPUT = 16 << 20  # bytes that a script may print
MAX_MESSAGE = 500  # characters of an exception's text
BACKSTOP = 10  # wall-clock limit, as a multiple of the time limit

# Modules that compute and touch nothing else: tests may import them, and both sides know what is in them by name.
KNOWN_MODULES = frozenset(
    str.split(
        "cmath collections copy datetime decimal fractions functools itertools json math operator random re"
        " statistics string sys typing __future__ abc array base64 binascii bisect builtins calendar codecs"
        " collections.abc colorsys contextlib contextvars dataclasses difflib enum graphlib hashlib heapq hmac"
        " html html.parser inspect io ipaddress keyword locale numbers pprint secrets stringprep struct"
        " textwrap time timeit token traceback types unicodedata urllib.parse uuid warnings weakref zlib"
        " zoneinfo numpy"
    )
)
