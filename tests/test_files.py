import contextlib
from pathlib import Path

import pytest

from minitrans.errors import UserError
from minitrans.files import open_aside, write_file


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "old")
    write_file(path, "neu é")
    assert path.read_bytes() == "neu é".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "old")
    with contextlib.suppress(ZeroDivisionError), open_aside(path) as file:
        file.write(b"half of the n")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*nowhere/a.txt: No such file or directory"):
        write_file(tmp_path / "nowhere" / "a.txt", "x")


def test_a_file_in_the_place_of_a_folder_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*file/a.txt: Not a directory"):
        write_file(tmp_path / "file" / "a.txt", "x")
