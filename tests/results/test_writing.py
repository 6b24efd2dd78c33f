from pathlib import Path

import pytest

from resprobe.errors import ResprobeError
from resprobe.results.writing import check_writable, whole_file


def test_nothing_is_left_behind(tmp_path):
    check_writable(tmp_path / "new" / "folder" / "result.nc")
    assert list(tmp_path.iterdir()) == []


def test_folder(tmp_path):
    with pytest.raises(ResprobeError, match="expected a file to write, got a folder"):
        check_writable(tmp_path)


def test_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResprobeError, match="expected to write a file there, got"):
        check_writable(tmp_path / "file" / "result.nc")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write")
def test_read_only_file_system():
    with pytest.raises(ResprobeError, match="expected to write a file there, got"):
        check_writable(Path("/proc/resprobe/result.nc"))


def test_the_old_file_stays_until_the_new_one_takes_its_place(tmp_path, monkeypatch):
    def refuse(source, target):
        assert Path(source).read_text() == "new"
        raise OSError(28, "No space left on device")

    path = tmp_path / "file.txt"
    path.write_text("old")
    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(ResprobeError, match="got No space left on device"), whole_file(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file.txt"]
