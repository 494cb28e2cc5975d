"""System call filters: which doors of the kernel stay open to a candidate.

Two filters, in classic BPF. The wide one is an allowlist, installed once in the zygote and inherited. The small
one closes what the zygote itself still needed; each child installs it just before the candidate runs, which
is why it is short: the kernel tries it on every system call number when it is installed.
"""

import errno
import os
import struct
from collections.abc import Callable

from .kernel import Unavailable, filter_installer
from .syscalls import numbers

_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_NO_SUCH_CALL = 0x00050000 | errno.ENOSYS
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # second table of x86-64, with the same calls under other numbers

_CLONE_THREAD = 0x10000
# Asking for a signal when a descriptor is ready, F_SETOWN and SIOCSPGRP, would send one to any process.
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)  # duplicate, flags, locks, F_DUPFD_CLOEXEC, F_GETPIPE_SZ
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # isatty, window size, FIONREAD, FIONBIO, FIO(N)CLEX
_SEPARATE = ("clone3", "fcntl", "ioctl", "prlimit64", "socketpair")
_PATHS = ("open", "openat", "getdents64")
_SIGKILL, _AF_UNIX = 9, 1
_STREAM = (0, 1, 0x801, 0x80001, 0x80801)  # a datagram socket could send to every other one, by its path
# Names of threads and of memory. Not: the signal at the parent's death, which would be lost.
_PRCTL = (15, 16, 0x53564D41)
# A filter, and not the strict mode, which ends a process by SIGKILL, as the host does without memory.
_SET_SECCOMP, _FILTER = 22, 2
_PID = 0x7EADBEEF  # stands in the child's filter for the pid that it gets

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def wide_filter(machine: str, files: bool = True) -> bytearray:
    """The allowlist of the zygote and everything below it, as 8-byte BPF instructions.

    Args:
        machine: "x86_64" or "aarch64".
        files: whether files can be opened at all. False where no other layer says which ones.
    """
    number = numbers(machine)
    refused = _SEPARATE if files else _SEPARATE + _PATHS
    allowed = sorted(value for name, value in number.items() if name not in refused)
    return _assemble(
        [
            (_LOAD, 0, 0, _ARCH),
            (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
            (_RETURN, 0, 0, _KILL),
            (_LOAD, 0, 0, _NUMBER),
            (_JUMP_AT_LEAST, 0, 1, _X32),
            (_RETURN, 0, 0, _REFUSE),
            *_rule(_NO_SUCH_CALL, number["clone3"]),  # the C library falls back on clone, whose flags a filter can see
            *_rule(_ALLOW, number["fcntl"], (2, _FCNTL)),
            *_rule(_ALLOW, number["ioctl"], (2, _IOCTL)),
            *_rule(_ALLOW, number["socketpair"], (0, (_AF_UNIX,)), (2, _STREAM)),  # asyncio wakes itself up through one
            *_rule(_ALLOW, number["prlimit64"], (4, (0,)), (5, (0,))),  # its pointer to a new limit is null
            *((_JUMP_EQUAL, len(allowed) - index, 0, value) for index, value in enumerate(allowed)),
            (_RETURN, 0, 0, _REFUSE),
            (_RETURN, 0, 0, _ALLOW),
        ]
    )


def narrow_filter(machine: str) -> bytearray:
    """What a child loses besides: new processes (threads may be started), and signals to others.

    `_PID` stands for the child's own pid; `install` returns the function that replaces it.
    """
    number = numbers(machine)
    program = [
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_EQUAL, 0, 4, number["clone"]),
        (_LOAD, 0, 0, _ARGUMENTS),
        (_JUMP_BITS, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
        *_rule(_ALLOW, number["prctl"], (0, _PRCTL)),
        *_rule(_ALLOW, number["prctl"], (0, (_SET_SECCOMP,)), (2, (_FILTER,))),
        *_rule(_REFUSE, number["prctl"]),
        *_rule(_REFUSE, number["seccomp"]),
    ]
    for call, signal_word in ((number["kill"], 2), (number["tgkill"], 4)):
        # Not SIGKILL even to itself: a child that died of that was killed from outside.
        program += _rule(_REFUSE, call, (signal_word, (_SIGKILL,)))
        program += _rule(_ALLOW, call, (0, (_PID,))) + _rule(_REFUSE, call)
    return _assemble([*program, (_RETURN, 0, 0, _ALLOW)])


def _rule(action: int, number: int, *wanted: tuple[int, tuple[int, ...]]) -> list[_Instruction]:
    """Answer a call with an action when each of these words of its arguments has one of the values; else go on.

    A word is 32 bits, two for each argument; the kernel, too, reads all but the pointers among them as ints.
    """
    block: list[_Instruction] = [(_RETURN, 0, 0, action)]
    for word, values in reversed(wanted):
        others = [(_JUMP_EQUAL, len(values) - 1 - index, 0, value) for index, value in enumerate(values[:-1])]
        last = (_JUMP_EQUAL, 0, len(block), values[-1])
        block = [(_LOAD, 0, 0, _ARGUMENTS + 4 * word), *others, last, *block]
    return [(_JUMP_EQUAL, 0, len(block) + 1, number), *block, (_LOAD, 0, 0, _NUMBER)]


def _assemble(program: list[_Instruction]) -> bytearray:
    return bytearray().join(struct.pack("HBBI", *instruction) for instruction in program)


def install(files: bool) -> tuple[str, Callable[[], None]]:
    """Install the wide filter in this process.

    Returns:
        What the layer does, and the function with which a child installs the narrow one.
    """
    machine = os.uname().machine
    if machine not in _AUDIT_ARCH:
        raise Unavailable(f"no table of system calls for {machine}")
    filter_installer(wide_filter(machine, files))()
    narrow = narrow_filter(machine)
    install_narrow = filter_installer(narrow)
    placeholder = struct.pack("I", _PID)
    places = [at for at in range(len(narrow)) if narrow.startswith(placeholder, at)]

    def close_doors() -> None:
        for place in places:
            struct.pack_into("I", narrow, place, os.getpid())
        install_narrow()

    return "system calls by allowlist: no new process, no program, no socket, no signal to others", close_doors
