"""Make this process behave like one on Windows, as far as files are concerned.

It has no modules and functions of POSIX. Folders cannot be opened, only files that are open for
writing can be synced, and open files cannot be deleted, renamed or replaced. ``msvcrt`` locks bytes
of files.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - these two choose their platform by msvcrt
import errno
import fcntl
import os
import select
import shutil
import signal
import stat
import subprocess  # noqa: F401
import sys
from types import ModuleType
from typing import Any

MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OS = (
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "chown", "fchmod", "fork", "forkpty"),
    *("getegid", "geteuid", "getgid", "getloadavg", "getuid", "killpg", "mkfifo", "posix_fadvise"),
    *("posix_fallocate", "pread", "preadv", "pwrite", "register_at_fork", "sched_getaffinity"),
    *("sendfile", "setsid", "statvfs", "sync", "wait"),
)
SIGNALS = ("SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2")
RENAMED = {"rename": os.rename, "replace": os.replace}
DELETED = {"remove": os.remove, "unlink": os.unlink, "rmdir": os.rmdir}
_open, _fsync = os.open, os.fsync


def be_like_windows() -> None:
    """Change this process; call it before statestore is imported."""
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for owner, names in ((os, OS), (signal, SIGNALS), (select, ("poll", "epoll"))):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    msvcrt = ModuleType("msvcrt")
    msvcrt.LK_NBLCK, msvcrt.locking = 2, _locking  # type: ignore[attr-defined]
    sys.modules["msvcrt"] = msvcrt
    os.open, os.fsync, os.kill = _open_file, _sync_file, _no_kill  # type: ignore[assignment]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    for name in RENAMED | DELETED:
        setattr(os, name, _refusing_open_files(name))


def _locking(descriptor: int, mode: int, size: int) -> None:
    assert mode == 2
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, size, 0, os.SEEK_CUR)
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, error.strerror) from None


def _open_file(path: Any, flags: int, *more: Any, **options: Any) -> int:
    if os.path.isdir(path):  # noqa: PTH112 - a path can be bytes
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return _open(path, flags, *more, **options)


def _sync_file(file: Any) -> None:
    descriptor = file if isinstance(file, int) else file.fileno()
    assert stat.S_ISREG(os.fstat(descriptor).st_mode)
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _fsync(descriptor)


def _no_kill(process: int, number: int) -> None:
    if number == 0:
        raise AssertionError("on Windows, 0 is Ctrl-C for all processes of the console")


def _refusing_open_files(name: str) -> Any:
    real = (RENAMED | DELETED)[name]

    def call(*paths: Any, **options: Any) -> Any:
        for path in paths:
            if os.path.exists(path) and _is_open(path):  # noqa: PTH110
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        if name == "rename" and os.path.exists(paths[1]):  # noqa: PTH110
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(paths[1]))
        return real(*paths, **options)

    return call


def _is_open(path: Any) -> bool:
    status = os.stat(path)  # noqa: PTH116
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            opened = os.fstat(int(descriptor))
        except OSError:
            continue
        if os.path.samestat(opened, status):
            return True
    return False
