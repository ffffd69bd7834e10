"""Agents that really learn: minutes each, run with `make learning`."""

import pytest

from lsac.agents import AGENTS
from lsac.presets import preset
from lsac.train.run import Training, describe, source_of
from lsac.train.stopping import Stop

pytestmark = pytest.mark.learning


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("algorithm", AGENTS)
def test_pendulum_swings_up(algorithm):
    """Three seeds of the quickstart preset; −250 is an upright pendulum, −1200 a policy that does nothing."""
    experiment = preset(algorithm, "quickstart", "Pendulum-v1")
    source = source_of(experiment.env)
    training = Training(algorithm, experiment, source, describe(source), None, evaluation_source=source)
    try:
        assert training.loop.run(Stop())
    finally:
        training.close()
    assert training.loop.best.returns.min() > -250
