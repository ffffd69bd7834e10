"""Frames in data files: they come back to the bit, take less space, and damage or malice is a sentence."""

import json
import time

import numpy as np
import pytest

from lsac.errors import CheckpointError
from lsac.runs import compressed, datafile


def film(seeds=2, steps=40, side=24, seed=0):
    """A square that moves over a still background: [S, n, H, W, 3]."""
    rng = np.random.default_rng(seed)
    frames = np.repeat(rng.integers(0, 256, (seeds, 1, side, side, 3), np.uint8), steps, axis=1)
    for t in range(steps):
        frames[:, t, t % side, :4] = 255
    return frames


@pytest.mark.parametrize("shape", [(1, 1, 200, 200, 3), (3, 40, 24, 24, 3), (1, 300, 84, 84, 3)])
def test_random_frames_come_back_to_the_bit(shape):
    """Also those that do not compress, and those of several blocks."""
    frames = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    data, record = compressed.compress(frames)
    assert len(record["sizes"]) == -(-frames.nbytes // compressed.BLOCK)
    np.testing.assert_array_equal(compressed.restore(data, json.loads(json.dumps(record))), frames)


def test_a_film_takes_a_fraction_of_its_size():
    frames = film()
    data, record = compressed.compress(frames)
    assert len(data) < frames.nbytes / 10
    np.testing.assert_array_equal(compressed.restore(data, record), frames)


def test_a_file_gives_frames_and_record_back(tmp_path):
    arrays = {
        "rows.frame": film(),
        "rows.first": np.zeros(film().shape[:2], bool),
        "weights": np.arange(6, dtype=np.float32),
        "small": np.ones((1, 2, 3, 4, 1), np.uint8),
    }
    digest = datafile.write(tmp_path / "x", arrays, {"first": 7})
    assert (tmp_path / "x").stat().st_size < arrays["rows.frame"].nbytes / 4
    found, record, same = datafile.read_verified(tmp_path / "x")
    assert (record, digest) == ({"format": datafile.FORMAT, "first": 7}, same)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [2, 40, 24, 24, 4]},
        {"shape": [2, 40, 24, 24]},
        {"shape": [2, 39, 24, 24, 3]},
        {"shape": [2**20, 2**20, 24, 24, 3]},
        {"shape": [-2, -40, 24, 24, 3]},
        {"shape": "all"},
        {"sizes": [1]},
        {"sizes": []},
        {"sizes": [True]},
        {"sizes": None},
    ],
)
def test_a_record_that_does_not_fit_is_rejected(change):
    data, record = compressed.compress(film())
    with pytest.raises(ValueError, match="frames"):
        compressed.restore(data, record | change)


def test_bytes_that_are_no_frames_are_rejected_in_one_sentence(tmp_path):
    data, record = compressed.compress(film())
    broken = data.copy()
    broken[len(broken) // 2] ^= 255
    with pytest.raises(ValueError, match="block of frames"):
        compressed.restore(broken, record)
    datafile.write(tmp_path / "x", {"rows.frame": broken}, {datafile.COMPRESSED: {"rows.frame": record}})
    with pytest.raises(CheckpointError, match=r"x: a block of frames"):
        datafile.read(tmp_path / "x")
    datafile.write(tmp_path / "x", {"other": broken}, {datafile.COMPRESSED: {"rows.frame": record}})
    with pytest.raises(CheckpointError, match="does not fit its arrays"):
        datafile.read(tmp_path / "x")


def test_frames_of_other_numbers_than_the_transitions_are_not_inflated(tmp_path, monkeypatch):
    """A few bytes may stand for gigabytes."""
    data, record = compressed.compress(film())
    arrays = {"rows.frame": data, "rows.first": np.zeros((2, 7), bool)}
    datafile.write(tmp_path / "x", arrays, {datafile.COMPRESSED: {"rows.frame": record}})
    monkeypatch.setattr(compressed, "restore", None)
    with pytest.raises(CheckpointError, match=r"x: its frames are not as many as its transitions$"):
        datafile.read(tmp_path / "x")
    found, _, _ = datafile.read_verified(tmp_path / "x", frames=False)
    assert found.keys() == {"rows.first"}


def test_frames_that_do_not_fit_into_memory_are_not_inflated(monkeypatch):
    data, record = compressed.compress(film())
    monkeypatch.setattr(compressed.main_memory, "free", lambda: film().nbytes - 1)
    with pytest.raises(ValueError, match=r"its frames would take .* GiB, but only .* GiB are free"):
        compressed.restore(data, record)
    monkeypatch.setattr(compressed.main_memory, "free", lambda: film().nbytes)
    np.testing.assert_array_equal(compressed.restore(data, record), film())


def test_many_small_frames_are_restored_in_no_more_steps_than_there_are_blocks():
    """A file that claims millions of frames of one byte, or of none, must not keep a program busy for hours."""
    frames = np.random.default_rng(0).integers(0, 256, (1, 3_000_000, 1, 1, 1)).astype(np.uint8)
    np.testing.assert_array_equal(compressed.restore(*compressed.compress(frames)), frames)
    none = np.zeros(0, np.uint8)
    started = time.monotonic()
    assert compressed.restore(none, {"shape": [1, 2**39, 0, 1, 1], "sizes": []}).size == 0
    zeros = np.zeros((1, 30_000_000, 1, 1, 1), np.uint8)
    np.testing.assert_array_equal(compressed.restore(*compressed.compress(zeros)), zeros)
    assert time.monotonic() - started < 10.0  # a step per frame takes more than 20 s


def test_a_small_file_cannot_claim_a_huge_array():
    """A block stops at the size that it should have, and the whole at what so few bytes can hold."""
    zeros = np.zeros((1, 400, 84, 84, 3), np.uint8)
    data, record = compressed.compress(zeros)
    assert zeros.nbytes > 200 * len(data)
    with pytest.raises(ValueError, match="size"):
        compressed.restore(data, record | {"shape": [1, 4_000_000, 84, 84, 3]})
    with pytest.raises(ValueError, match="size"):
        compressed.restore(data[:-1], record | {"sizes": [*record["sizes"][:-1], record["sizes"][-1] - 1]})
