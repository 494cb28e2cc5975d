"""System call numbers of Linux on x86-64 and aarch64, for the calls that the sandbox's filters name.

From the kernel's `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`. A dash
marks a call that aarch64 never had, such as `open`, for which C libraries use `openat` there.
"""

_TABLE = """
# memory
brk 12 214, mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, msync 26 227
mincore 27 232
# open descriptors
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, lseek 8 62
close 3 57, dup 32 23, dup2 33 -, dup3 292 24, ftruncate 77 46, getdents64 217 61, pipe 22 -, pipe2 293 59
# paths, read only; Landlock decides what can be opened
open 2 -, openat 257 56, stat 4 -, lstat 6 -, fstat 5 80, newfstatat 262 79, statx 332 291, access 21 -
faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getcwd 79 17
# waiting
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -
epoll_pwait 281 22, epoll_pwait2 441 441, eventfd2 290 19, timerfd_create 283 85, timerfd_settime 286 86
timerfd_gettime 287 87, nanosleep 35 101, clock_nanosleep 230 115, pause 34 -, restart_syscall 219 128
# clocks, randomness, who am I
clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153, getrusage 98 165
getrandom 318 278, getpid 39 172, getppid 110 173, gettid 186 178, getpgid 121 155, getpgrp 111 -
getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148
getresgid 120 150, getgroups 115 158, uname 63 160, sysinfo 99 179, getcpu 309 168, getrlimit 97 163
getpriority 140 141
# threads, scheduling
futex 202 98, set_robust_list 273 99, get_robust_list 274 100, set_tid_address 218 96, rseq 334 293
arch_prctl 158 -, sched_yield 24 124, sched_getaffinity 204 123, sched_getscheduler 145 120
sched_get_priority_max 146 125, sched_get_priority_min 147 126
# signals to itself, leaving
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136
rt_sigtimedwait 128 137, sigaltstack 131 132, getitimer 36 102, setitimer 38 103, alarm 37 -, exit 60 93
exit_group 231 94
# what the zygote itself needs: its control socket, starting and reaping children, their own filter
sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, wait4 61 260, waitid 247 95, setsid 112 157
setpgid 109 154, prctl 157 167, seccomp 317 277, pidfd_open 434 434
# allowed with some arguments only
clone 56 220, clone3 435 435, socketpair 53 199, kill 62 129, tgkill 234 131, ioctl 16 29, fcntl 72 25
prlimit64 302 261
"""


def numbers(machine: str) -> dict[str, int]:
    """Name to number on "x86_64" or "aarch64", without the calls that this machine lacks.

    >>> numbers("x86_64")["openat"], numbers("aarch64")["openat"]
    (257, 56)
    """
    column = {"x86_64": 1, "aarch64": 2}[machine]
    lines = (line for line in _TABLE.splitlines() if not line.startswith("#"))
    rows = (row.split() for line in lines for row in line.split(",") if row)
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
