"""The comparison of the numbers of two versions notices a bit, and an array that only one of them has."""

import numpy as np
import pytest
import same_numbers


def written(path, **arrays):
    np.savez(path, **arrays)
    return path


ONE = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ({"a": ONE, "b": ONE}, "2 arrays, all the same"),
        ({"a": np.nextafter(ONE, np.float32(2)), "b": ONE}, "2 arrays, differ: a"),
        ({"a": ONE}, "2 arrays, differ: b"),
        ({"a": ONE, "b": ONE, "c": ONE}, "3 arrays, differ: c"),
    ],
)
def test_a_difference_is_named(new, found, tmp_path):
    old = written(tmp_path / "old.npz", a=ONE, b=ONE)
    assert same_numbers.difference(old, written(tmp_path / "new.npz", **new)) == found
