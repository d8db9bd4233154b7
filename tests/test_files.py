import contextlib
import errno
import os
import stat
from pathlib import Path
from unittest.mock import MagicMock, Mock, patch

import pytest

from minitrans.errors import UserError
from minitrans.files import atomic_folder, atomic_open, write_file


@pytest.mark.parametrize("mount_point", [False, True])
def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount_point: bool
) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "old")
    with patch.object(os, "access", lambda *_: False), pytest.raises(UserError, match="Permission denied"):
        write_file(path, "new")  # though another file could take its place
    path.chmod(mode := 0o602)  # which no umask leaves
    replace = MagicMock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with patch.object(os, "replace", replace), pytest.raises(UserError, match="No space left on device"):
        write_file(path, "new")
    assert path.read_text() == "old"
    if mount_point:
        monkeypatch.setattr(os, "replace", MagicMock(side_effect=OSError(errno.EBUSY, "Device or resource busy")))
    write_file(path, "neu é")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    with contextlib.suppress(ZeroDivisionError), atomic_open(path) as file:
        file.write(b"half of the n")
        raise ZeroDivisionError
    assert path.read_bytes() == "neu é".encode()
    with atomic_open(path) as file:  # of two at once, also of the same number in two containers, each is whole
        file.write(b"late")
        write_file(path, "early")
        assert path.read_text() == "early"
    assert path.read_text() == "late"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_files_are_on_the_disk_before_they_get_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = Mock()
    for name in ("fsync", "replace", "rename"):
        done.attach_mock(Mock(wraps=getattr(os, name)), name)
        monkeypatch.setattr(os, name, getattr(done, name))
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "a").touch()
        write_file(folder / "b", "text")
    assert [name for name, *_ in done.mock_calls] == ["fsync", "replace", "fsync", "fsync", "rename"]


def test_links_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    path, link, pipe = (tmp_path / name for name in ("a.txt", "link", "pipe"))
    path.touch()
    link.symlink_to(path)
    write_file(link, "text")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, "text")
    assert (link.is_symlink(), path.read_text(), os.read(reader, 9)) == (True, "text", b"text")
    with contextlib.suppress(BrokenPipeError), atomic_open(pipe):  # which is no UserError
        os.close(reader)
        raise BrokenPipeError  # as a write would
    assert len(list(tmp_path.iterdir())) == 3


def test_an_open_file_is_continued_at_its_position(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        for name, fd in (("/dev/stdout", 1), ("/dev/stderr", 2), (f"/dev/fd/{log.fileno()}", log.fileno())):
            os.write(fd, b"head, ")
            write_file(name, "text, ")
            os.write(fd, b"tail")
    assert (*capfd.readouterr(), path.read_text()) == ("head, text, tail",) * 3
    with pytest.raises(UserError, match="cannot write /dev/fd/999999999: Bad file descriptor"):
        write_file("/dev/fd/999999999", "text")


def test_a_partly_written_file_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, partial = tmp_path / "a.txt", tmp_path / "a.txt.partial"
    for there, written in ((b"", b"one\nhal"), (b"one\n", b"two\n\n\xe6")):
        with contextlib.suppress(ZeroDivisionError), atomic_open(path, resume=True) as file:
            assert file.read() == there
            file.write(written)
            with pytest.raises(UserError, match=r"another process is writing .*a\.txt\.partial; wait for it to end"):
                atomic_open(path, resume=True).__enter__()
            raise ZeroDivisionError
        assert [p.name for p in tmp_path.iterdir()] == ["a.txt.partial"]
        assert partial.read_bytes() == there + written

    def replace(old: Path, new: Path) -> None:
        with pytest.raises(UserError, match="another process is writing "):
            atomic_open(path, resume=True).__enter__()
        Path.rename(old, new)

    monkeypatch.setattr(os, "replace", replace)
    with atomic_open(path, resume=True) as file:
        assert list(file) == [b"one\n", b"two\n", b"\n"]
        file.write(b"end")
    assert path.read_bytes() == b"one\ntwo\n\nend"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder"
    with contextlib.suppress(ZeroDivisionError), atomic_folder(path) as temp:
        write_file(temp / "a.txt", "half")
        raise ZeroDivisionError
    assert list(path.parent.iterdir()) == []
    with contextlib.suppress(UserError), atomic_folder(path), atomic_folder(path) as temp:
        write_file(temp / "a.txt", "whole")
        assert not path.exists()
    assert [p.name for p in path.parent.iterdir()] == ["folder"]
    assert (path / "a.txt").read_text() == "whole"
