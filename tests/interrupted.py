"""Interruptions that must leave no trace: of a simulator, and of a whole run."""

import torture
from test_states import carried, play

from lsac.envs import states
from lsac.envs.wrapping import stack_of
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder
from lsac.train import run as running
from lsac.train.logger import Observer
from lsac.train.stopping import Stop


def ending(env, steps):
    """The same environment, with so many steps left of its episode."""
    (limit,) = [layer for layer in stack_of(env) if hasattr(layer, "_max_episode_steps")]
    limit._elapsed_steps = limit._max_episode_steps - steps
    return env


def captured_and_continued(make):
    """Captures a simulator shortly before the end of an episode, and lets it and two others, one in the middle of an
    episode and one that was never reset, go on from there into the next episode. Returns the captured state."""
    env, other, fresh = make(), make(), make()
    env.reset(seed=3)
    play(env, 37, seed=0)
    state = states.take(ending(env, 40))
    other.reset(seed=99)
    play(ending(other, 5), 12, seed=1)
    for made in (other, fresh):
        states.put(made, carried(state))
    again = states.take(other)
    assert (again.metadata, again.arrays.tobytes()) == (state.metadata, state.arrays.tobytes())
    expected = play(env, 90, seed=2)
    assert play(other, 90, seed=2) == play(fresh, 90, seed=2) == expected
    assert len(expected) == 91, "an episode ended on the way"
    for made in (env, other, fresh):
        made.close()
    return state


def stopped_and_resumed(experiment: Experiment, at: int, alone, stopped) -> None:
    """Stops a run at the first line of metrics of step `at` and resumes it: its files are those of the run `alone`,
    which is made unless it is there."""
    if not alone.exists():
        assert running.run(experiment, folder=RunFolder.create(alone, experiment)).finished
    stop, said = Stop(), []
    watch = lambda progress: stop.request() if progress.step == at else None  # noqa: E731
    folder = RunFolder.create(stopped, experiment)
    assert not running.run(experiment, folder=folder, observer=Observer(watch), stop=stop).finished
    folder, found = RunFolder.open(stopped, to_train=True)
    assert found == experiment
    result = running.run(found, folder=folder, resume=True, observer=Observer(say=said.append))
    assert (result.finished, result.step) == (True, experiment.total_steps)
    assert f"continuing at step {at:,}; exact: the simulators continue where they were" in said
    assert torture.fingerprint(stopped) == torture.fingerprint(alone)
