"""The system calls that a program may make: a list of what computing needs, as a filter that the kernel runs.

All others fail with ENOSYS: sockets, processes, threads, signals, and whatever makes, changes or removes a file.
"""

import ctypes
import errno
import os
import struct

from .kernel import Refused, call, no_new_privileges

MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""os.uname().machine -> its number in a filter, and its column below."""

NO = None  # the machine has no such call
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # data that is open already
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "close": (3, 57),
    "lseek": (8, 62), "dup": (32, 23), "dup2": (33, NO), "dup3": (292, 24), "fadvise64": (221, 223),
    "poll": (7, NO), "ppoll": (271, 73), "select": (23, NO), "pselect6": (270, 72),
    # what files are there
    "stat": (4, NO), "fstat": (5, 80), "lstat": (6, NO), "newfstatat": (262, 79), "statx": (332, 291),
    "access": (21, NO), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, NO), "readlinkat": (267, 78),
    "getdents64": (217, 61), "getcwd": (79, 17),
    # memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "brk": (12, 214),
    "madvise": (28, 233), "mincore": (27, 232),
    # its own signals
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "alarm": (37, NO), "getitimer": (36, 102),
    "setitimer": (38, 103), "restart_syscall": (219, 128),
    # time
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, NO), "times": (100, 153),
    # itself, and its end
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179),
    "uname": (63, 160), "getrandom": (318, 278), "futex": (202, 98), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "getcpu": (309, 168), "membarrier": (324, 283), "arch_prctl": (158, NO),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293), "exit": (60, 93),
    "exit_group": (231, 94),
}  # fmt: skip

# arguments that matter: the position of the argument, and the values that are allowed
CHOSEN: dict[str, tuple[tuple[int | None, int | None], int, tuple[int, ...]]] = {
    "fcntl": ((72, 25), 1, (0, 1, 2, 3, 4, 1030)),  # no F_SETOWN and F_SETSIG: they send signals to others
    "ioctl": ((16, 29), 1, (0x5401, 0x5450, 0x5451, 0x541B)),  # TCGETS, FIONCLEX, FIOCLEX, FIONREAD
    "prlimit64": ((302, 261), 0, (0,)),  # of itself alone
}
OPENED: dict[str, tuple[tuple[int | None, int | None], int]] = {"open": ((2, NO), 1), "openat": ((257, 56), 2)}
"""Calls that open a file, and the position of their flags."""

CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER, MACHINE, ARGUMENTS = 0, 4, 16


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def returned(value: int) -> bytes:
    return instruction(RETURN, value)


def program(machine: str) -> bytes:
    """The filter. Arguments are compared by their lower half, as the kernel reads these (they are of type int).

    Raises `Refused` for a machine whose numbers stand in no table here.
    """
    if machine not in MACHINES:
        raise Refused(f"no table of system calls for {machine}")
    name, column = MACHINES[machine]
    parts = [
        instruction(LOAD, MACHINE),
        instruction(EQUAL, name, if_true=1),
        returned(KILL),  # calls of another machine's numbers, such as those of 32 bits
        instruction(LOAD, NUMBER),
    ]

    def rule(numbers: tuple[int | None, int | None], body: list[bytes]) -> None:
        if numbers[column] is not None:
            parts.append(instruction(EQUAL, numbers[column], if_false=len(body)))
            parts.extend(body)

    for numbers in ALLOWED.values():
        rule(numbers, [returned(ALLOW)])
    for numbers, position, values in CHOSEN.values():
        tests = [one for value in values for one in (instruction(EQUAL, value, if_false=1), returned(ALLOW))]
        rule(numbers, [instruction(LOAD, ARGUMENTS + 8 * position), *tests, returned(ERROR | errno.EPERM)])
    for numbers, position in OPENED.values():
        flags = [instruction(LOAD, ARGUMENTS + 8 * position), instruction(ANY_BIT, CHANGES, if_false=1)]
        rule(numbers, [*flags, returned(ERROR | errno.EACCES), returned(ALLOW)])
    return b"".join([*parts, returned(ERROR | errno.ENOSYS)])


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def confine() -> None:
    """This process makes no other calls from now on, nor does what it starts. Raises `Refused`."""
    content = program(os.uname().machine)
    no_new_privileges()
    call("prctl", 22, 2, Filter(len(content) // 8, content))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
