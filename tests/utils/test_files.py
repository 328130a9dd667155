"""Files are written whole or not at all, and never over one of the user's."""
import pytest

from mmrm.utils.errors import UserFileError, UserValueError
from mmrm.utils.files import atomic_write, check_out, write_text


def test_out_is_checked_before_work(tmp_path):
    with pytest.raises(UserFileError, match='is a folder'):
        check_out(tmp_path)
    (tmp_path / 'file').touch()
    with pytest.raises(UserFileError, match='cannot be written'):
        check_out(tmp_path / 'file' / 'below.md')
    with pytest.raises(UserValueError, match=r'must end in \.pth, \.pt'):
        check_out(tmp_path / 'file.bin', suffixes=('.pth', '.pt'))
    with pytest.raises(UserFileError, match='exists and is left as it is'):
        check_out(tmp_path / 'file')


def test_a_file_appears_with_the_folders_above_it(tmp_path):
    assert write_text(tmp_path / 'x' / 'y.md', 'ü').read_text(encoding='utf-8') == 'ü'
    assert [path.name for path in (tmp_path / 'x').iterdir()] == ['y.md']


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / 'a.md').write_text('old')
    with pytest.raises(UserFileError, match='could not be written: No space left'), \
            atomic_write(tmp_path / 'a.md', overwrite=True) as part:
        part.write_text('half')
        raise OSError(28, 'No space left on device')
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / 'b.md') as part:
        part.write_text(str(1 / 0))
    assert [path.name for path in tmp_path.iterdir()] == ['a.md'] and (tmp_path / 'a.md').read_text() == 'old'


def test_a_file_that_appears_in_the_meantime_is_kept(tmp_path):
    with pytest.raises(UserFileError, match='exists and is left as it is'), atomic_write(tmp_path / 'a.md') as part:
        part.write_text('mine')
        (tmp_path / 'a.md').write_text('theirs')
    assert (tmp_path / 'a.md').read_text() == 'theirs' and len(list(tmp_path.iterdir())) == 1
