"""The kernel features that confine the zygote and everything below it, through ctypes.

A layer is turned on for this process and what it forks, once. Its function returns a text that says what it does, or
raises `Unavailable` with the reason. The order matters: see `zygote.Zygote`.
"""

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Callable


class Unavailable(OSError):
    """This host does not offer the layer."""


_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
_SIGKILL = 9
STACK_BYTES = 64 << 20  # deep recursion is honest


def _call(function: str, *arguments: object) -> int:
    """A C function that returns -1 and sets errno when it fails; integers are passed as C longs."""
    longs = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result: int = getattr(_libc, function)(*longs)
    if result < 0:
        code = ctypes.get_errno()
        raise Unavailable(code, os.strerror(code), function)
    return result


def _prctl(option: int, value: int) -> None:
    _call("prctl", option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel end this process when the process that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def limit_privileges() -> str:
    """No program can gain rights, orphans come to this process, no debugger attaches."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    return "no_new_privs, child subreaper, not dumpable"


def enter_namespaces() -> str:
    """A network without interfaces and a process tree of its own, which begins with the next child.

    No mount namespace: Landlock decides about files, and an unchanged copy of the mounts would protect nothing.
    """
    flags = _CLONE_NEWNET | _CLONE_NEWPID | _CLONE_NEWIPC
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", flags)
    except Unavailable:  # not privileged: ask for a user namespace, in which this process is
        _call("unshare", flags | _CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        return "network, processes and IPC of its own, in a user namespace"
    return "network, processes and IPC of its own"


def drop_capabilities() -> str:
    """Root without its powers. The user id stays: the standard library may lie below a private home."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except Unavailable:
            break  # a plain user: it has no capability to drop, and cannot gain one either
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0), 8)
    nothing = ctypes.create_string_buffer(bytes(24), 24)
    _call("capset", header, nothing)
    return "no capabilities"


def limit_resources(**limits: int) -> None:
    """Set limits of the kernel by their names, as "NOFILE"; they cannot be raised again."""
    for name, limit in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, allowed = resource.getrlimit(kind)
        limit = limit if allowed == resource.RLIM_INFINITY else min(limit, allowed)
        resource.setrlimit(kind, (limit, limit))


def own_real_user() -> None:
    """Give root a real user id that nobody else has, so that a limit on processes and threads holds for it.

    The kernel counts them by the real id, and spares the real id 0. Files are still opened as the effective one.
    """
    os.setresuid(60_000 + int.from_bytes(os.urandom(2)) % 5_000, -1, -1)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def filter_installer(program: bytearray) -> Callable[[], None]:
    """Prepare a seccomp filter: a function that adds it, as it is then, to the process that calls the function."""
    code = (ctypes.c_char * len(program)).from_buffer(program)
    description = _Program(len(program) // 8, ctypes.addressof(code))
    keep = (code, description)

    def install() -> None:
        _call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(keep[1]), 0, 0)

    return install


# --------------------------------------------------------------------------------------------- Landlock

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same number on every architecture
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8


def restrict_files(numpy: str = "", *more: str) -> str:
    """Landlock: read the standard library, shared libraries, NumPy in its folder and `more`, touch no other file."""
    version = _call("syscall", _CREATE_RULESET, None, 0, _VERSION_FLAG)
    files = (1 << (13 + (version >= 2) + (version >= 3))) - 1 | (1 << 15 if version >= 5 else 0)
    network = 3 if version >= 4 else 0  # TCP bind and connect
    scope = 3 if version >= 6 else 0  # abstract unix sockets, signals
    attributes = struct.pack("QQQ", files, network, scope)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _call("syscall", _CREATE_RULESET, attributes, len(attributes), 0)
    for path, access in [*_readable(numpy), *((path, _READ_FILE | _READ_DIR) for path in more)]:
        _allow(ruleset, path, access)
    _call("syscall", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return f"Landlock version {version}: reads the standard library, writes nothing"


def _readable(numpy: str) -> list[tuple[str, int]]:
    """Paths and access rights. Not site-packages: data sets with their answers are installed there."""
    tree = _READ_FILE | _READ_DIR | _EXECUTE
    library = os.path.dirname(os.__file__)
    parts = [name for name in os.listdir(library) if name not in ("site-packages", "dist-packages")]
    rules = [(f"{library}/{name}", tree) for name in parts]
    rules += [(library, _READ_DIR), ("/usr/share/zoneinfo", tree)]
    architecture = getattr(sys.implementation, "_multiarch", "")  # Debian keeps shared libraries apart by it
    rules += [(f"{root}/{architecture}", tree) for root in ("/lib", "/usr/lib") if architecture]
    for root in ("/lib64", "/usr/lib64", f"{sys.base_prefix}/lib"):
        names = os.listdir(root) if os.path.isdir(root) else []
        rules += [(f"{root}/{name}", _READ_FILE | _EXECUTE) for name in names if ".so" in name]
    rules += [(f"{numpy}/{name}", tree) for name in ("numpy", "numpy.libs") if numpy]
    return [*rules, ("/dev/null", _READ_FILE | _WRITE_FILE), ("/dev/urandom", _READ_FILE)]


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        access &= ~_READ_DIR
    rule = struct.pack("=Qi", access, descriptor)
    _call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    os.close(descriptor)
