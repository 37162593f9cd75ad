"""What the Linux kernel does to keep a process apart: Landlock, namespaces and limits.

Calls go through the C library by ctypes; the constants are those of the kernel's headers (linux/landlock.h,
linux/prctl.h, linux/mount.h, linux/sched.h).
"""

import contextlib
import ctypes
import os
import resource
import signal


class Refused(OSError):
    """The kernel does not do what it was asked for."""


libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> int:
    """The result of a function of the C library. Raises `Refused` where it fails or does not exist."""
    try:
        function = getattr(libc, name)
    except AttributeError:
        raise Refused(f"{name} does not exist on this system") from None
    function.restype = ctypes.c_long if name == "syscall" else ctypes.c_int
    result = function(*map(as_c, arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise Refused(number, f"{name}: {os.strerror(number)}")
    return result


def as_c(argument: object) -> object:
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    if isinstance(argument, str):
        return ctypes.c_char_p(os.fsencode(argument))
    return ctypes.byref(argument) if isinstance(argument, ctypes.Structure) else argument


def no_new_privileges() -> None:
    call("prctl", 38, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Ends this process as soon as its parent, whose id is given, has ended."""
    call("prctl", 1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def reap_descendants(apart: bool) -> dict[int, int]:
    """Ends all that this process has started, and what these have started: process -> its exit code.

    `apart`: it is the first process of a namespace, so that all others in sight are its own.
    """
    codes: dict[int, int] = {}
    while True:
        for process in [-1] if apart else children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        try:
            process, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return codes
        codes[process] = os.waitstatus_to_exitcode(status)


def children() -> list[int]:
    """Processes whose parent is this one; it inherits those whose parent has ended (`adopt`)."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def adopt() -> None:
    """This process becomes the parent of all below it whose parents end."""
    call("prctl", 36, 1, 0, 0, 0)


def hide() -> None:
    """No other process reads this one's memory, descriptors or environment."""
    call("prctl", 4, 0)


# Landlock

READ_FILE, READ_FOLDER = 1 << 2, 1 << 3
FILE_RIGHTS = (0, 13, 14, 15, 15, 16)
"""How many rights on files each version of Landlock knows, from version 0 on."""

CREATE, ADD, RESTRICT = 444, 445, 446
"""Numbers of the system calls, on every machine."""


class Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scope", ctypes.c_uint64))


class Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("place", ctypes.c_int32))


def landlock(readable: list[str]) -> None:
    """This process opens nothing but what lies below `readable`, to read it, from now on.

    It traces no process outside. Where the kernel is new enough, it makes no TCP connection and sends no signal there.
    Raises `Refused` where the kernel has no Landlock.
    """
    version = call("syscall", CREATE, None, 0, 1)
    rights = (1 << FILE_RIGHTS[min(version, len(FILE_RIGHTS) - 1)]) - 1
    ruleset = Ruleset(rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    rules = call("syscall", CREATE, ruleset, 24 if version >= 6 else 16 if version >= 4 else 8, 0)
    for path in readable:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = READ_FILE | READ_FOLDER if os.path.isdir(path) else READ_FILE
        call("syscall", ADD, rules, 1, Rule(allowed, place), 0)
        os.close(place)
    no_new_privileges()
    call("syscall", RESTRICT, rules, 0)
    os.close(rules)


# Namespaces

NEW_USER, NEW_OTHERS = 0x10000000, 0x20000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""A user's, and those of mounts, control groups, names of the host, IPC, processes and networks."""

READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, PRIVATE = 1, 2, 4, 32, 4096, 1 << 18 | 1 << 14
KEPT = {os.ST_NOEXEC: 8, getattr(os, "ST_NOATIME", 0): 1024, getattr(os, "ST_NODIRATIME", 0): 2048}
"""What a mount must keep when it is mounted again: its flag in statvfs -> its flag in mount."""

PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def namespaces(folder: str, readable: list[str]) -> None:
    """This process gets a network without a way out and a file system of what is `readable`, which it cannot change.

    What it starts next sees no other processes. `folder` is empty and becomes the root of the file system. Raises
    `Refused` where the kernel allows none of it, and half done: the caller ends then.
    """
    user, group = os.getuid(), os.getgid()
    call("unshare", NEW_USER | NEW_OTHERS)
    for name, content in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    call("mount", "none", "/", None, PRIVATE, None)
    call("mount", "none", folder, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    for path in readable:
        show(path, folder + path)
    for link in ("/lib", "/lib64"):  # what the loader asks for, where these are names of /usr/lib
        if os.path.islink(link):
            os.symlink(os.readlink(link), folder + link)
    os.makedirs(f"{folder}{folder}", exist_ok=True)
    os.chdir(folder)
    if os.uname().machine not in PIVOT_ROOT:
        raise Refused(f"pivot_root has no known number on {os.uname().machine}")
    call("syscall", PIVOT_ROOT[os.uname().machine], ".", ".")
    call("umount2", ".", 2)  # MNT_DETACH: the old root, which lies on top of the new one
    call("mount", "none", "/", None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES, None)
    os.chdir(folder)


def show(path: str, at: str) -> None:
    """Mounts a file or folder at another place, to be read only."""
    if os.path.isdir(path):
        os.makedirs(at, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(at), exist_ok=True)
        os.close(os.open(at, os.O_CREAT | os.O_RDONLY))
    call("mount", path, at, None, BIND, None)
    had = os.statvfs(at).f_flag
    kept = sum(flag for name, flag in KEPT.items() if had & name)
    call("mount", "none", at, None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES | kept, None)


class CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("process", ctypes.c_int))


class Capabilities(ctypes.Structure):
    _fields_ = (("values", ctypes.c_uint32 * 6),)


def drop_capabilities() -> None:
    """Root's powers, also those in its own namespace."""
    call("capset", CapabilityHeader(0x20080522, 0), Capabilities())
    no_new_privileges()


# Limits


def limit(seconds: float, memory: float) -> None:
    """Processor time, memory (GiB), no written bytes, no new processes, no core files.

    At the end of its time the process is told to leave, and one second later it is killed.
    """
    most = max(1, int(-(-seconds // 1)))
    space = int(memory * 2**30)
    limits = {"AS": space, "FSIZE": 0, "NPROC": 0, "CORE": 0, "NOFILE": 64, "MEMLOCK": 0, "MSGQUEUE": 0}
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:  # not every system has all of them
            resource.setrlimit(kind, (value, value))
