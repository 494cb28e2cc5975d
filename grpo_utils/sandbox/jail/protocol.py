"""The formats that the trusted side, the zygote and its children share.

Two kinds of socket. The control socket lasts as long as the zygote: `START` goes in together with one end of a
connection, `REPORT` comes back. The connection lasts for one check and leads to its child: messages (`LENGTH`, then
marshalled data) go in, frames (`HEADER`, then a payload) come back.
"""

import struct

START = struct.Struct("<d")  # the time limit in seconds
REPORT = struct.Struct("<cidd")  # how the child ended, its wait status, CPU seconds, wall-clock seconds
EXITED, TIMED_OUT, NOT_STARTED = b"e", b"t", b"n"

LENGTH = struct.Struct("<I")
HEADER = struct.Struct("<cI")  # kind and length of the payload
VALUE = b"v"  # a call returned, or the module body ran to its end; encoder.encode
RAISED = b"x"  # the same raised; encoder.encode([type name, message])
PRINTED = b"o"  # part of the standard output

MAX_STDOUT = 10_000  # bytes of standard output that travel; scripts may print encoder.MAX_BYTES
MAX_MESSAGE = 500  # characters of an exception's text
BACKSTOP = 10  # wall-clock limit, as a multiple of the time limit
