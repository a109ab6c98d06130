import pathlib
import unittest.mock
import warnings

import numpy as np
import pytest

from sat_tf.training.data.cache import cache_folder, load_or_make

ARRAYS = {
    "codes": np.arange(10_000, dtype=np.int32),
    "picture": np.full((50, 50), 7, np.uint8),
}


@pytest.fixture
def make():
    return unittest.mock.Mock(side_effect=lambda: dict(ARRAYS))


def _load(path, make):
    arrays = load_or_make(path, make, names=tuple(ARRAYS))
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


def test_arrays_are_made_once(tmp_path, make):
    path = tmp_path / "new" / "folder" / "arrays.npz"
    _load(path, make)
    _load(path, make)
    assert make.call_count == 1
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, -1])
def test_a_truncated_file_is_made_again(tmp_path, make, kept):
    path = tmp_path / "arrays.npz"
    _load(path, make)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    with pytest.warns(UserWarning, match="received a damaged file"):
        _load(path, make)
    assert make.call_count == 2
    _load(path, make)
    assert make.call_count == 2


def test_no_flipped_byte_anywhere_gives_wrong_arrays(tmp_path, make):
    path = tmp_path / "arrays.npz"
    _load(path, make)
    whole = path.read_bytes()
    positions = np.random.RandomState(0).randint(0, len(whole), 100)
    for position in (*range(0, 60, 3), *positions, *range(len(whole) - 60, len(whole), 3)):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        # Some bytes mean nothing, the time of writing for one: reading them wrongly is no damage.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _load(path, make)


def test_a_file_of_something_else_is_made_again(tmp_path, make):
    path = tmp_path / "arrays.npz"
    np.savez(path, other=np.zeros(3))
    with pytest.warns(UserWarning, match="KeyError"):
        _load(path, make)
    assert make.call_count == 1


def test_a_folder_that_cannot_be_written_costs_the_cache_but_not_the_data(tmp_path, make):
    file = tmp_path / "file"
    file.write_text("not a folder")
    for _ in range(2):
        with pytest.warns(UserWarning, match="pass a writable cache_dir or set SAT_TF_CACHE"):
            _load(file / "arrays.npz", make)
    assert make.call_count == 2
    assert file.read_text() == "not a folder"


def test_a_stopped_run_leaves_nothing_behind(tmp_path, make, monkeypatch):
    def stop(file, **arrays):
        file.write(b"half an archi")
        raise KeyboardInterrupt

    path = tmp_path / "arrays.npz"
    monkeypatch.setattr(np, "savez", stop)
    with pytest.raises(KeyboardInterrupt):
        _load(path, make)
    assert list(tmp_path.iterdir()) == []


def test_the_argument_wins_over_the_environment_and_that_over_the_home(monkeypatch):
    monkeypatch.setenv("SAT_TF_CACHE", "~/elsewhere")
    assert cache_folder("/somewhere") == pathlib.Path("/somewhere")
    assert cache_folder() == pathlib.Path.home() / "elsewhere"
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("SAT_TF_CACHE")
        else:
            monkeypatch.setenv("SAT_TF_CACHE", unset)
        assert cache_folder() == pathlib.Path.home() / ".cache" / "sat_tf"
