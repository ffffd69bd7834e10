"""Every agent that learns from vectors still computes what it did: losses, norms and actions after three updates and
after a tiny run.

A change that is meant to change a number writes the file again, `python tests/golden.py --write`, and says why.
"""

import json

import golden
import pytest

from lsac.agents import VECTORS

EXPECTED = json.loads(golden.FILE.read_text())


@pytest.fixture(scope="module")
def found():
    return golden.computed(list(EXPECTED))


def test_every_agent_of_vectors_has_its_numbers(found):
    """A new agent gets its numbers with `python tests/golden.py --write NAME`, when it is finished."""
    assert EXPECTED.keys() == found.keys() == set(VECTORS)


@pytest.mark.parametrize("when", ["updates", "run"])
@pytest.mark.parametrize("algorithm", EXPECTED)
def test_numbers_are_what_they_were(algorithm, when, found):
    assert len(EXPECTED[algorithm][when]) >= 10
    assert found[algorithm][when] == pytest.approx(EXPECTED[algorithm][when], rel=1e-6, abs=1e-9)
