"""Runs a command under a filter that refuses `unshare`, as container runtimes do by default."""

import errno
import os
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from grpo_utils.sandbox.jail.kernel import filter_installer, limit_privileges

UNSHARE = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
PROGRAM = (
    (0x20, 0, 0, 0),  # load the number of the system call
    (0x15, 0, 1, UNSHARE),
    (0x06, 0, 0, 0x50000 | errno.EPERM),
    (0x06, 0, 0, 0x7FFF0000),  # allow
)

if __name__ == "__main__":
    limit_privileges()
    filter_installer(bytearray().join(struct.pack("HBBI", *instruction) for instruction in PROGRAM))()
    os.execv(sys.argv[1], sys.argv[1:])
