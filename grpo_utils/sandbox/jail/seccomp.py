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

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
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
_PR_SET_SECCOMP, _FILTER = (
    22,
    2,
)  # not its strict mode, which ends a process by SIGKILL, as the host does without memory
_PID = 0x7EADBEEF  # stands in the child's filter for the pid that it gets

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def wide_filter(machine: str, files: bool = True) -> bytes:
    """The allowlist of the zygote and everything below it.

    Args:
        machine: "x86_64" or "aarch64".
        files: whether files can be opened at all. False where no other layer says which ones.

    Returns:
        A program of 8-byte BPF instructions.
    """
    number = numbers(machine)
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    # ENOSYS makes the C library fall back on clone, whose flags a filter can see.
    program += [(_JUMP_EQUAL, 0, 1, number["clone3"]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    program += _argument_among(number["fcntl"], 1, _FCNTL)
    program += _argument_among(number["ioctl"], 1, _IOCTL)
    program += _both_among(number["socketpair"], (_AF_UNIX,), _STREAM)  # asyncio wakes itself up through one
    program += _only_reading_limits(number["prlimit64"])
    refused = _SEPARATE if files else _SEPARATE + _PATHS
    allowed = sorted(value for name, value in number.items() if name not in refused)
    program += [(_JUMP_EQUAL, len(allowed) - index, 0, value) for index, value in enumerate(allowed)]
    program += [(_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return _assemble(program)


def narrow_filter(machine: str) -> bytes:
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
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        *_few_options(number["prctl"]),
        (_JUMP_EQUAL, 0, 1, number["seccomp"]),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        *_signal_to_itself(number["kill"], 1),
        *_signal_to_itself(number["tgkill"], 2),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return _assemble(program)


def _argument_among(number: int, argument: int, values: tuple[int, ...]) -> list[_Instruction]:
    """Allow the call when the argument is one of the values, refuse it otherwise; skip other calls.

    The comparison sees the lower 32 bits; the kernel reads each of these arguments as an int, too.
    """
    return [
        (_JUMP_EQUAL, 0, len(values) + 3, number),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * argument),
        *((_JUMP_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _few_options(prctl: int) -> list[_Instruction]:
    """Allow prctl with an option of `_PRCTL`, and further filters."""
    allowed = _argument_among(prctl, 0, _PRCTL)
    more = [
        (_JUMP_EQUAL, 0, 2, _PR_SET_SECCOMP),
        (_LOAD, 0, 0, _ARGUMENTS + 8),
        (_JUMP_EQUAL, 1, 0, _FILTER),
    ]
    options = [(code, true + len(more), false, value) for code, true, false, value in allowed[2:-2]]
    return [(_JUMP_EQUAL, 0, len(allowed) + len(more) - 1, prctl), allowed[1], *options, *more, *allowed[-2:]]


def _both_among(number: int, first: tuple[int, ...], second: tuple[int, ...]) -> list[_Instruction]:
    """Allow the call when its first two arguments are each one of the values, refuse it otherwise; skip other calls."""
    allowed = _argument_among(number, 1, second)[1:]
    refused = _argument_among(number, 0, first)[1:-1]
    return [(_JUMP_EQUAL, 0, len(refused) + len(allowed), number), *refused, *allowed]


def _signal_to_itself(number: int, signal_argument: int) -> list[_Instruction]:
    """Allow a signal to the own process unless it is SIGKILL: a child that died of that was killed from outside."""
    return [
        (_JUMP_EQUAL, 0, 6, number),
        (_LOAD, 0, 0, _ARGUMENTS),
        (_JUMP_EQUAL, 0, 2, _PID),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * signal_argument),
        (_JUMP_EQUAL, 0, 1, _SIGKILL),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _only_reading_limits(prlimit64: int) -> list[_Instruction]:
    """Allow prlimit64 when its third argument, a pointer to a new limit, is null in both halves."""
    return [
        (_JUMP_EQUAL, 0, 6, prlimit64),
        (_LOAD, 0, 0, _ARGUMENTS + 16),
        (_JUMP_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, _ARGUMENTS + 20),
        (_JUMP_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _assemble(program: list[_Instruction]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def install(files: bool) -> tuple[str, Callable[[], None]]:
    """Install the wide filter in this process.

    Args:
        files: see `wide_filter`.

    Returns:
        What the layer does, and the function with which a child installs the narrow one.

    Raises:
        Unavailable: the kernel or the machine has no such filter.
    """
    machine = os.uname().machine
    if machine not in _AUDIT_ARCH:
        raise Unavailable(f"no table of system calls for {machine}")
    filter_installer(wide_filter(machine, files))()
    narrow = bytearray(narrow_filter(machine))
    install_narrow = filter_installer(narrow)
    placeholder = struct.pack("I", _PID)
    places = [at for at in range(len(narrow)) if narrow.startswith(placeholder, at)]

    def close_doors() -> None:
        for place in places:
            struct.pack_into("I", narrow, place, os.getpid())
        install_narrow()

    return "system calls by allowlist: no new process, no program, no socket, no signal to others", close_doors
