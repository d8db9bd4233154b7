"""Files and folders that are written whole or not at all."""

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import randbits
from typing import BinaryIO

from minitrans.errors import UserError


@contextmanager
def atomic_open(path: str | Path, resume: bool = False) -> Iterator[BinaryIO]:
    """Open a file for writing beside `path`; it takes that name when the block ends, and vanishes if the block fails.

    Whenever the machine stops, `path` is the old file or the new one, whole. With `resume`, what was written stays in
    `path`.partial if the block fails; the next time, that file is opened at its beginning, less an incomplete last
    line, to be read and appended to. A link stays a link, and a pipe or a device such as /dev/null is written to, not
    replaced. An open file such as /dev/stdout is written from its current position. A mount point, such as a single
    file in a container, gets a copy of the content, which is not atomic either.

    Raises:
        UserError: The file cannot be written, or another process is writing `path`.partial.
        BrokenPipeError: It is a pipe that nobody reads any more.
    """
    file_path = os.path.realpath(path)
    # Two processes may write the same file, in two containers even with the same process id.
    temp = Path(f"{file_path}.partial" if resume else f"{file_path}.{randbits(32)}.tmp")
    try:
        fd = named_descriptor(path)
        if fd is not None or (os.path.exists(path) and not os.path.isfile(path)):
            with open(path if fd is None else os.dup(fd), "wb") as file:
                yield file
            return
        with open(temp, "a+b" if resume else "wb") as file:
            if resume:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise UserError(f"another process is writing {temp}; wait for it to end") from error
                file.seek(0)
                file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
                file.seek(0)
            if not resume and os.path.exists(file_path):
                if not os.access(file_path, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                temp.chmod(stat.S_IMODE(os.stat(file_path).st_mode))  # what only its owner may read stays private
            yield file
            file.flush()
            os.fsync(file.fileno())  # or a power failure might leave the new name without its content
            try:
                os.replace(temp, file_path)  # while the file is locked
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                shutil.copyfile(temp, file_path)  # a mount point, such as a single file in a container
                temp.unlink()
    except BrokenPipeError:  # whoever read the pipe has gone
        raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if not resume:
            with suppress(OSError):  # it has its new name by now, or could not be made
                temp.unlink()


def named_descriptor(path: str | Path) -> int | None:
    """The descriptor of the open file that a path such as /dev/stdout or /dev/fd/3 names; else None."""
    name = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}.get(str(path), str(path))
    match = re.fullmatch("(?:/dev|/proc/self)/fd/([0-9]{1,9})", name)
    return int(match[1]) if match else None


def write_file(path: str | Path, content: bytes | str) -> None:
    """Write a whole file; text as UTF-8.

    Raises:
        UserError: The file cannot be written.
    """
    with atomic_open(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def make_folder(path: Path, advice: str) -> None:
    """Make a folder, unless it exists.

    Raises:
        UserError: It cannot be made; the message ends with the advice.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; {advice}") from error


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a folder beside `path`; it takes that name when the block ends, and vanishes if the block fails.

    Raises:
        UserError: `path` already exists, or the folder or a file in it cannot be written.
    """
    if os.path.lexists(path):
        raise UserError(f"{path} already exists; remove it or name another folder")
    temp = Path(f"{path}.{randbits(32)}.tmp")
    try:
        temp.mkdir(parents=True)
        yield temp
        for file in temp.iterdir():
            with open(file, "rb+") as stream:
                os.fsync(stream.fileno())
        temp.rename(path)
    except OSError as error:
        raise UserError(f"cannot write the folder {path}: {error.strerror}; name another one") from error
    finally:
        shutil.rmtree(temp, ignore_errors=True)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Lock a file, made if it does not exist, against all other processes. A process that dies releases it.

    Raises:
        UserError: Another process holds it, or it cannot be made.
    """
    with ExitStack() as held:
        try:
            fcntl.flock(held.enter_context(open(path, "ab")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{path.parent} is in use by another process; wait for it to end, or name another folder"
            ) from error
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; name another folder") from error
        yield
