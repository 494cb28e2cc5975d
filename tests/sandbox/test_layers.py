"""The layers of protection: what is reported, what is refused, and what the filters let through."""

import os
import re
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from grpo_utils.sandbox import Layer, Sandbox, SandboxUnavailable, capabilities, pool
from grpo_utils.sandbox.__main__ import main
from grpo_utils.sandbox.jail.seccomp import _PID, narrow_filter, wide_filter
from grpo_utils.sandbox.jail.syscalls import numbers

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def test_capabilities_name_every_layer_and_say_why() -> None:
    layers = capabilities()
    assert [layer.name for layer in layers] == list(pool.LAYERS)
    assert all(layer.detail for layer in layers)


def test_a_missing_layer_is_reported_once_or_refused() -> None:
    pool._warned.clear()
    with pytest.warns(UserWarning, match="landlock"):
        Sandbox(workers=1, without=["landlock"]).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sandbox(workers=1, without=["landlock"]).close()
    with pytest.raises(SandboxUnavailable, match="landlock"):
        Sandbox(workers=1, strict=True, without=["landlock"])


def test_a_layer_that_does_not_exist_and_a_sandbox_without_workers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_SANDBOX_WITHOUT", "namespaces, landlok")
    with pytest.raises(SandboxUnavailable, match="no layer 'landlok'"):
        Sandbox(workers=1)
    monkeypatch.delenv("GRPO_SANDBOX_WITHOUT")
    with pytest.raises(ValueError, match="at least one worker"):
        Sandbox(workers=0)


@pytest.mark.filterwarnings("ignore:the sandbox runs without")
def test_the_judge_that_reads_what_candidates_send_is_confined_too() -> None:
    with Sandbox(workers=1) as sandbox:
        assert sandbox.check("def f(n): return n", ["assert f(1) == 1"]).ok
        lines = Path(f"/proc/{sandbox._workers[0]._process.pid}/status").read_text().splitlines()  # type: ignore[union-attr]
    status = dict(line.split(":\t", 1) for line in lines)
    assert (status["Seccomp"], status["NoNewPrivs"], int(status["CapEff"], 16)) == ("2", "1", 0)


def test_without_landlock_no_file_can_be_opened() -> None:
    with Sandbox(workers=1, without=["landlock"]) as sandbox:
        assert sandbox.check("import decimal, uuid, unittest.mock\nx = 1", ["assert x == 1"]).ok
        assert sandbox.check("open('/etc/passwd')", ["assert True"]).error_type == "PermissionError"


def test_seccomp_is_missed_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.Sandbox, "layers", (Layer("seccomp", False, "no such thing"),))
    with pytest.raises(SandboxUnavailable, match="GRPO_SANDBOX_WITHOUT"):
        Sandbox(workers=1)
    monkeypatch.setenv("GRPO_SANDBOX_WITHOUT", "seccomp")
    with pytest.warns(UserWarning, match="seccomp"):
        Sandbox(workers=1).close()


def test_other_systems_are_told_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not any(layer.on for layer in capabilities())
    with pytest.raises(SandboxUnavailable, match="macOS"):
        Sandbox()


def test_site_packages_with_their_data_sets_cannot_be_read(sandbox: Sandbox) -> None:
    folder = Path(os.__file__).parent / "site-packages"
    if not folder.is_dir():
        pytest.skip("this Python keeps its packages elsewhere")
    file = next(path for path in folder.rglob("*.py"))
    verdict = sandbox.check(f"open({str(file)!r}).read()", ["assert True"])
    assert verdict.error_type == "PermissionError"


def test_the_package_needs_the_standard_library_only() -> None:
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); import grpo_utils.sandbox; print(*sys.modules)"
    listed = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    imported = {name.split(".")[0] for name in listed.split()}
    assert imported <= {*sys.stdlib_module_names, "__main__", "grpo_utils"}


def test_the_command_line_reports_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert "WRONG" not in printed
    assert "seccomp" in printed
    file = tmp_path / "solution.py"
    file.write_text("def half(n): return n // 2")
    assert main([str(file), "assert half(4) == 2"]) == 0
    assert main([str(file), "assert half(4) == 2", "assert half(3) == 1.5"]) == 1
    assert "failed, 1 of 2" in capsys.readouterr().out
    assert main([str(tmp_path / "nothing.py"), "assert half(4) == 2"]) == 2
    assert "nothing.py" in capsys.readouterr().err


# ------------------------------------------------------------------------------------ filters, on any machine


def verdict_of(program: bytearray, machine: str, name: str | int, *arguments: int, arch: int | None = None) -> int:
    """Interpret a filter as the kernel does, for one system call."""
    number = name if isinstance(name, int) else numbers(machine)[name]
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("iIQ6Q", number, ARCHITECTURES[machine] if arch is None else arch, 0, *padded)
    instructions = list(struct.iter_unpack("HBBI", program))
    accumulator = position = 0
    while True:
        code, if_true, if_false, operand = instructions[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("I", data, operand)
        elif code == 0x06:
            return operand & 0xFFFF0000
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}[
                code
            ]
            position += if_true if holds else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_wide_filter(machine: str) -> None:
    program = wide_filter(machine)
    known = numbers(machine)
    questions = [
        ("read", (), ALLOW), ("openat", (), ALLOW), ("futex", (), ALLOW), ("clone", (17,), ALLOW),
        ("clone3", (), ERRNO), (9999, (), ERRNO), ("prlimit64", (0, 9, 0, 5), ALLOW), ("prlimit64", (0, 9, 5), ERRNO),
        ("prlimit64", (0, 9, 1 << 32), ERRNO), ("ioctl", (1, 0x5401), ALLOW), ("ioctl", (1, 0x8901), ERRNO),
        ("ioctl", (1, 0x5412), ERRNO), ("fcntl", (1, 3), ALLOW), ("fcntl", (1, 8), ERRNO), ("fcntl", (1, 10), ERRNO),
        ("socketpair", (1,), ALLOW), ("socketpair", (2,), ERRNO),
    ]  # fmt: skip
    for name, arguments, expected in questions:
        assert verdict_of(program, machine, name, *arguments) == expected, name
    assert verdict_of(program, machine, "read", arch=0x40000003) == KILL  # 32-bit calls
    assert verdict_of(wide_filter(machine, files=False), machine, "openat") == ERRNO
    never = "socket connect execve execveat ptrace unlinkat mount bpf io_uring_setup process_vm_readv kexec_load"
    assert not set(never.split()) & set(known)
    assert {call for call in range(600) if verdict_of(program, machine, call) == ALLOW} <= set(known.values())


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_narrow_filter(machine: str) -> None:
    program = narrow_filter(machine)
    thread = 0x3D0F00
    questions = [
        ("clone", (17,), ERRNO), ("clone", (thread,), ALLOW), ("kill", (_PID, 6), ALLOW), ("kill", (_PID, 9), ERRNO),
        ("kill", (1, 6), ERRNO),
        ("kill", (2**32 - 1, 9), ERRNO), 
        ("tgkill", (_PID, 5, 6), ALLOW), ("tgkill", (_PID, 5, 9), ERRNO), ("tgkill", (1, 1, 6), ERRNO),
        ("read", (), ALLOW),
    ]  # fmt: skip
    for name, arguments, expected in questions:
        assert verdict_of(program, machine, name, *arguments) == expected, name


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_are_those_of_the_kernel_headers(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip("no kernel headers here")
    defined = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    defined.setdefault("newfstatat", defined.get("fstatat", ""))
    assert {name: str(number) for name, number in numbers(machine).items()}.items() <= defined.items()
