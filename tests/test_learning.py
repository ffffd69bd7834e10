"""Agents that really learn: minutes each, run with `make learning`."""

import pytest

from lsac.agents import AGENTS
from lsac.presets import preset
from lsac.train.run import Observer, run

pytestmark = pytest.mark.learning


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("algorithm", AGENTS)
def test_pendulum_swings_up(algorithm):
    """Three seeds of the quickstart preset; −250 is an upright pendulum, −1200 a policy that does nothing."""
    experiment = preset(algorithm, "quickstart", "Pendulum-v1")
    best = dict.fromkeys(experiment.seed_list, -float("inf"))

    def watch(progress):
        for line in progress.lines:
            best[line["seed"]] = max(best[line["seed"]], line.get("eval/mean_reward", -float("inf")))

    assert run(experiment, observer=Observer(watch)).finished
    assert min(best.values()) > -250
