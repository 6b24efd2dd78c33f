from pathlib import Path

import pytest

from resprobe.errors import ResprobeError
from resprobe.writing import check_writable


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
