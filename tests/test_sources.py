"""All the ways in which an environment can be given, in worker processes and in this one, and what is refused."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from multiprocessing import Pipe
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import own_envs
import pytest
import small
from gymnasium import spaces
from gymnasium import wrappers as gw

from lsac.collect.pool import Pool, training_groups
from lsac.envs import ids
from lsac.envs.recipes import Recipe, read_arguments, recipe_of, written
from lsac.envs.sources import create, given, of_experiment
from lsac.envs.wrapping import stack_of
from lsac.errors import EnvironmentFault, InputError
from lsac.replay.ring import PACKED
from lsac.runs.experiment import Experiment


@contextlib.contextmanager
def pool_of(environments, plans=None):
    experiment = Experiment(small.config("sac"), environments.name)
    spec = environments.spec(experiment.gamma)
    pool = Pool(experiment, spec, environments.training, plans or training_groups([0], 2), workers=1)
    try:
        yield pool
    finally:
        pool.close()


def rows(environments, steps=60):
    """The transitions of two simulators, more than one episode of each."""
    with pool_of(environments) as pool:
        pool.reset(0)
        pool.collect(np.zeros(pool.policy_shape), 0, steps, True)
        return pool.collected()[0][PACKED]


def created(source):
    """An environment as a simulator gets it: by its recipe, as in a worker, or else in this process."""
    if source.recipe is None:
        return source.make()
    return create(Recipe(*json.loads(json.dumps(source.recipe))))


def rewards(environments, steps=60):
    """The rewards [T] of an environment under fixed actions."""
    env, rng, earned = created(environments.training), np.random.default_rng(0), []
    env.reset(seed=5)
    for _ in range(steps):
        _, reward, terminated, truncated, _ = env.step(rng.uniform(-2, 2, 1).astype(np.float32))
        earned.append(reward)
        if terminated or truncated:
            env.reset()
    return np.array(earned)


def episode(environments):
    """Return and length of an evaluation."""
    env, total, length = created(environments.evaluation), 0.0, 0
    env.reset(seed=5)
    while True:
        _, reward, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
        total, length = total + float(reward), length + 1
        if terminated or truncated:
            return total, length


@functools.cache
def expected():
    """What the pendulum answers in a process, given in the way that always worked."""
    found = rows(given("own/Text-v0"))
    found.setflags(write=False)
    return found


def refused(*args, **options):
    with pytest.raises(InputError) as found:
        given(*args, **options)
    return str(found.value)


# ids

IN_PROCESSES = {
    "class": ("own/Class-v0", {}),
    "function": ("own/Function-v0", {}),
    "NumPy number of the registration": ("own/Numpy-v0", {}),
    "NumPy numbers": ("own/Text-v0", {"g": np.float32(10), "scale": np.int64(1), "start": (np.bool_(True), {"a": 1})}),
    "no name, but a module": ("own_envs:own/Partial-v0", {"g": 10.0}),
    "module": ("own_envs:own/Text-v0", {}),
}
IN_THIS_PROCESS = {
    "partial": ("own/Partial-v0", {"g": 10.0}),
    "lambda": ("own/Lambda-v0", {}),
    "array": ("own/Text-v0", {"start": np.zeros(2)}),
    "object": ("own/Text-v0", {"start": SimpleNamespace()}),
    "function as a value": ("own/Class-v0", {"start": len}),
    "key that is no text": ("own/Text-v0", {"start": {1: 2}}),
}


@pytest.mark.parametrize("way", [*IN_PROCESSES, *IN_THIS_PROCESS])
def test_an_id_runs_in_worker_processes_where_these_can_create_it(way):
    env_id, kwargs = (IN_PROCESSES | IN_THIS_PROCESS)[way]
    found = given(env_id, env_kwargs=kwargs)
    assert (found.training.recipe is not None) == (way in IN_PROCESSES)
    assert found.evaluation is not None
    assert found.why_single == ""
    np.testing.assert_array_equal(rewards(found), rewards(given("own/Text-v0")))


@pytest.mark.parametrize("way", ["class", "no name, but a module", "lambda"])
def test_transitions_are_the_same_in_which_way_ever_an_id_is_registered(way):
    env_id, kwargs = (IN_PROCESSES | IN_THIS_PROCESS)[way]
    np.testing.assert_array_equal(rows(given(env_id, env_kwargs=kwargs)), expected())


def test_arguments_reach_the_environment_in_every_process():
    usual = rewards(given("own/Text-v0"))
    for env_id in ("own/Text-v0", "own/Lambda-v0", "own_envs:own/Partial-v0"):
        found = given(env_id, env_kwargs={"scale": 3.0, "g": 10.0})
        np.testing.assert_allclose(rewards(found), 3 * usual, rtol=1e-6)
    short = given("own/Text-v0", env_kwargs={"max_episode_steps": 7})
    assert episode(short)[1] == 7
    assert episode(given("own/Text-v0"))[1] == 50


@pytest.mark.parametrize("entry_point", ["__main__:Nb", "class"])
def test_what_a_notebook_registers_runs_in_this_process(entry_point, monkeypatch):
    main = sys.modules["__main__"]

    class Nb(own_envs.Swing):
        pass

    Nb.__module__, Nb.__qualname__ = "__main__", "Nb"
    monkeypatch.setattr(main, "Nb", Nb, raising=False)
    monkeypatch.setitem(gym.registry, "Nb-v0", None)
    gym.registry.pop("Nb-v0")
    gym.register("Nb-v0", Nb if entry_point == "class" else entry_point, max_episode_steps=50)
    found = given("Nb-v0")
    assert found.training.recipe is None
    np.testing.assert_array_equal(rewards(found), rewards(given("own/Text-v0")))
    gym.registry.pop("Nb-v0")


def test_a_module_that_only_this_process_finds_is_found_by_workers(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text(
        "import gymnasium, own_envs\nclass Away(own_envs.Swing): pass\n"
        "gymnasium.register('Away-v0', Away, max_episode_steps=50)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    np.testing.assert_array_equal(rows(given("elsewhere:Away-v0")), expected())


def test_a_module_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text(
        "import gymnasium, own_envs\ngymnasium.register('Beside-v0', own_envs.Swing, max_episode_steps=50)\n"
    )
    (tmp_path / "json.py").write_text("raise SystemExit('a file here must not replace what is installed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(tmp_path))])
    assert given("beside:Beside-v0").training.recipe is not None
    assert sys.path[-1] == str(tmp_path), "it comes last"


def test_dm_control_runs_in_worker_processes():
    pytest.importorskip("shimmy", reason="needs shimmy[dm-control]")
    pytest.importorskip("dm_control", reason="needs shimmy[dm-control]")
    found = given("shimmy:dm_control/cartpole-swingup-v0")
    assert found.training.recipe is not None
    assert found.spec(0.9).obs_dim == 5
    assert rows(found, 5).shape == (1, 10, 2 * 5 + 1 + 2)


REFUSED_IDS = {
    "ALE/Pong-v5": "; it belongs to the package ale_py: install it with: pip install ale-py, and write --env ale_py:A",
    "PointMaze_UMaze-v3": "pip install gymnasium-robotics, and write --env gymnasium_robotics:PointMaze_UMaze-v3",
    "FetchReach-v4": "write --env gymnasium_robotics:FetchReach-v4",
    "dm_control/RunThroughCorridor-v0": "write --env shimmy:dm_control/RunThroughCorridor-v0",
    "MiniGrid-Empty-5x5-v0": "pip install minigrid, and write --env minigrid:MiniGrid-Empty-5x5-v0",
    "HalfCheeta-v5": "no such Gymnasium environment; did you mean HalfCheetah-v5?",
    "own_envs:own/Clas-v0": "no such Gymnasium environment; did you mean own_envs:own/Class-v0?",
    "own_envs:Qwertz-v0": "no such Gymnasium environment; module own_envs does not register it",
    "Qwertz-v0": "--env Qwertz-v0: no such Gymnasium environment",
    "nowhere_mod:My-v0": "module nowhere_mod cannot be imported (No module named 'nowhere_mod')",
    "metaworld:Meta-World/MT1": "(No module named 'metaworld'); install it with: pip install metaworld",
    ":My-v0": "cannot be imported",
}


@pytest.mark.parametrize("env_id", REFUSED_IDS)
def test_an_unknown_id_is_refused_with_what_to_do(env_id, monkeypatch):
    for known in [known for known in gym.registry if known.rpartition("-v")[0] == env_id.rpartition("-v")[0]]:
        monkeypatch.delitem(gym.registry, known)  # another test may have imported its package
    if ":" not in env_id:
        monkeypatch.setattr(ids, "_can_be_found", lambda module: False)
    sentence = refused(env_id)
    assert sentence.startswith(f"--env {env_id}: ")
    assert REFUSED_IDS[env_id] in sentence
    assert ("did you mean" in sentence) == ("did you mean" in REFUSED_IDS[env_id]), "no silly guess"


def test_a_package_that_is_installed_need_not_be_installed(monkeypatch):
    monkeypatch.setattr(ids, "_can_be_found", lambda module: True)
    assert refused("ALE/Pong-v5").endswith("; it belongs to the package ale_py: write --env ale_py:ALE/Pong-v5")


def test_a_module_that_fails_shows_its_own_traceback(tmp_path, monkeypatch):
    (tmp_path / "fails_at_once.py").write_text("def f():\n    return {}['gone']\n\nf()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"^--env fails_at_once:X-v0: module fails_at_once cannot be imported \(") as e:
        given("fails_at_once:X-v0")
    assert re.search(r'fails_at_once\.py", line 2, in f', e.value.detail)
    assert "importlib" not in e.value.detail


def test_an_environment_that_cannot_be_created_shows_its_own_traceback():
    with pytest.raises(InputError, match=r"^--env own/Text-v0: could not be created: 'broken at once'$") as found:
        given("own/Text-v0", env_kwargs={"broken": True})
    assert re.search(r'own_envs\.py", line \d+, in __init__', found.value.detail)
    assert f"{os.sep}lsac{os.sep}envs" not in found.value.detail
    assert isinstance(found.value.__cause__, KeyError)


@pytest.mark.parametrize("value", [0, -2, "long", 1.5, True])
def test_a_time_limit_is_a_number_of_steps(value):
    assert "--env-args max_episode_steps=" in refused("own/Text-v0", env_kwargs={"max_episode_steps": value})


def test_an_unknown_argument_is_named():
    assert refused("own/Text-v0", env_kwargs={"gravity": 1}) == (
        "--env-args gravity: own/Text-v0 has no argument of this name"
    )


# arguments as text

ARGUMENTS = {
    "g=9.81": {"g": 9.81},
    "n=3": {"n": 3},
    "flag=false": {"flag": False},
    "nothing=null": {"nothing": None},
    "name=fast": {"name": "fast"},
    'name="3"': {"name": "3"},
    "range=[0.2, 1.0]": {"range": [0.2, 1.0]},
    'table={"a": [1, {}]}': {"table": {"a": [1, {}]}},
    "text=a=b": {"text": "a=b"},
    "empty=": {"empty": ""},
    "bound=Infinity": {"bound": float("inf")},
}


@pytest.mark.parametrize("text", ARGUMENTS)
def test_an_argument_is_json_or_else_a_text(text):
    assert read_arguments([text]) == ARGUMENTS[text]
    assert written(ARGUMENTS[text]) == (text,)


def test_what_is_no_data_is_not_written():
    assert written({"a": np.zeros(2), "b": len, "c": 1, "d": {1: 2}}) == ("c=1",)


def test_an_argument_that_is_nested_too_deeply_is_refused():
    with pytest.raises(InputError, match=r"^--env-args x: its value is nested too deeply$"):
        read_arguments(["x=" + "[" * 100_000])


# objects


def test_an_object_is_used_itself_and_copies_are_made_from_its_spec():
    env = gym.make("own/Class-v0", scale=2.0)
    found = given(env)
    assert (found.name, found.args, found.recreatable) == ("own/Class-v0", ("scale=2.0",), True)
    first, second = found.training.make(), found.training.make()
    assert first is env
    assert second is not env
    assert second.unwrapped.scale == 2.0
    assert found.evaluation.make() not in (first, second)
    found.training.release(first)
    assert found.training.make() is env, "it can be used again"


def test_a_used_object_stays_open_and_copies_are_closed():
    closed = []

    class Closing(own_envs.Swing):
        def close(self):
            closed.append(self)

    gym.register("own/Closing-v0", Closing)
    env = gym.make("own/Closing-v0")
    found = given(env)
    closed.clear()
    rows(found, 5)
    rows(found, 5)
    assert len(closed) == 2, "one copy each time"
    assert env.unwrapped not in closed
    gym.registry.pop("own/Closing-v0")


OBJECTS = {
    "plain": (lambda: gym.make("own/Text-v0"), (), ()),
    "rendered": (lambda: gym.make("own/Text-v0", render_mode="rgb_array"), (), ()),
    "with arguments": (lambda: gym.make("own/Text-v0", g=np.float64(3.0)), ("g=3.0",), ()),
    "shorter": (lambda: gym.make("own/Text-v0", max_episode_steps=9), ("max_episode_steps=9",), ()),
    "endless": (lambda: gym.make("own/Text-v0", max_episode_steps=-1), ("max_episode_steps=-1",), ()),
    "wrapped": (lambda: gw.FlattenObservation(gym.make("own/Text-v0")), (), ("FlattenObservation",)),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_is_described_by_its_id_arguments_and_wrappers(kind):
    make, args, wrappers = OBJECTS[kind]
    found = given(make())
    assert found.recreatable
    assert found.args == args
    assert tuple(name.rpartition(":")[2] for name in found.wrappers) == wrappers
    described = SimpleNamespace(env=found.name, env_args=found.args, wrappers=found.wrappers, pixels=0)
    again = of_experiment(described)
    np.testing.assert_array_equal(rewards(again), rewards(found))


@pytest.mark.parametrize(
    "make",
    [
        lambda: gw.RescaleObservation(gym.make("own/Text-v0"), np.float32(-1), np.float32(1)),
        lambda: gym.make("own/Text-v0", start=np.zeros(2)),
        lambda: own_envs.Doubling(gym.make("own/Text-v0")),
        own_envs.Swing,
    ],
    ids=["wrapper with arguments", "array", "wrapper of one's own", "no id"],
)
def test_an_object_that_its_id_does_not_tell_is_not_recreatable(make):
    assert not given(make()).recreatable


class Local(gym.RewardWrapper, gym.utils.RecordConstructorArgs):
    """Records its arguments wrongly, so that its spec cannot create it."""

    def __init__(self, env, factor):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.RewardWrapper.__init__(self, env)

    def reward(self, reward):
        return reward


SINGLE = {
    "no spec": (own_envs.Swing, "environment Swing cannot be copied, because it has no spec; "),
    "wrapper without a record": (
        lambda: own_envs.Doubling(gym.make("own/Text-v0")),
        "environment own/Text-v0 cannot be copied, because its wrapper Doubling does not record its arguments; ",
    ),
    "wrong record": (
        lambda: Local(gym.make("own/Text-v0"), 2.0),
        "environment own/Text-v0 cannot be copied, because its spec does not create it again (",
    ),
}


@pytest.mark.parametrize("kind", SINGLE)
def test_an_object_that_cannot_be_copied_says_why_and_what_helps(kind):
    make, why = SINGLE[kind]
    found = given(make())
    assert found.why_single.startswith(why)
    assert found.why_single.endswith(
        "pass a function that creates it (lambda: …), or eval_env= and seeds=1, num_envs=1"
    )
    assert found.evaluation is None
    again = given(make)
    assert (again.why_single, again.evaluation is None) == ("", False)
    with_own = given(make(), eval_env=make)
    assert episode(with_own)[1] >= 50 if kind != "no spec" else with_own.evaluation is not None
    assert refused(make(), eval_env=make()).startswith(f"eval_env: {why}")


# functions


@pytest.mark.parametrize(
    ("factory", "in_process"),
    [
        (own_envs.make_swing, False),
        (own_envs.Swing, False),
        (lambda: own_envs.make_swing(), True),
        (functools.partial(own_envs.make_swing, g=10.0), True),
    ],
    ids=["function", "class", "lambda", "partial"],
)
def test_a_function_creates_every_simulator(factory, in_process):
    found = given(factory)
    assert found.name == "Swing"
    assert (found.training.recipe is None) == in_process
    assert not found.recreatable
    np.testing.assert_array_equal(rewards(found)[:20], rewards(given("own/Text-v0"))[:20])


def test_functions_serve_one_run_after_another():
    found = given(lambda: own_envs.make_swing())
    for _ in range(2):
        np.testing.assert_array_equal(rows(found), expected())
    np.testing.assert_array_equal(rows(given(own_envs.make_swing)), expected())


def test_a_class_takes_arguments():
    found = given(own_envs.Swing, env_kwargs={"scale": 2.0})
    np.testing.assert_allclose(rewards(found)[:20], 2 * rewards(given("own/Text-v0"))[:20], rtol=1e-6)


def test_a_function_of_a_registered_environment_tells_its_id():
    found = given(lambda: gym.make("own/Text-v0", g=3.0))
    assert (found.name, found.args, found.recreatable) == ("own/Text-v0", ("g=3.0",), True)


@pytest.mark.parametrize("factory", [lambda: own_envs.SHARED, own_envs.make_shared], ids=["here", "in a worker"])
def test_a_function_must_create_a_new_environment_each_time(factory):
    with pytest.raises(InputError, match=r"^env: the function returned the same environment twice; it must create a"):
        rows(given(factory))


def test_a_function_that_fails_is_named():
    assert refused(own_envs.make_nothing) == "env: the function that creates it returned None, not an environment"
    with pytest.raises(InputError, match=r"^env: the function that creates it raised KeyError: 'broken at once'$") as e:
        given(own_envs.Swing, env_kwargs={"broken": True})
    assert re.search(r'own_envs\.py", line \d+, in __init__', e.value.detail)


# evaluations of another environment


def test_evaluations_can_have_an_environment_of_their_own():
    length = {"own/Text-v0": 50}
    for eval_env in ("own/Text-v0", lambda: gym.make("own/Text-v0", max_episode_steps=9), gym.make("own/Text-v0")):
        found = given("own/Class-v0", env_kwargs={"max_episode_steps": 7}, eval_env=eval_env)
        assert episode(found)[1] == length.get(eval_env, 50 if isinstance(eval_env, gym.Env) else 9)
        assert not found.recreatable, "config.json does not describe it"


def test_an_environment_for_evaluations_is_not_closed_before_it_is_used():
    env = gym.make("own/Text-v0")
    found = given("own/Class-v0", eval_env=lambda: env)
    assert found.evaluation.make() is env, "one episode at a time is possible"
    with pytest.raises(InputError, match=r"^eval_env: the function returned the same environment twice"):
        found.evaluation.make()


def test_evaluations_need_the_same_spaces():
    assert refused("own/Class-v0", eval_env="Hopper-v5").startswith("eval_env: its observation space is Box(")
    other = gw.RescaleAction(gym.make("own/Text-v0"), np.float32(-1), np.float32(1))
    assert refused("own/Class-v0", eval_env=other).startswith("eval_env: its action space is Box(-1.0, 1.0, (1,)")
    assert refused("own/Class-v0", eval_env=7).startswith("eval_env: 7 is neither the id of an environment")


# refused


class FakeVecEnv:
    """As far as a vector environment of Stable-Baselines3 is asked."""

    num_envs = 4


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: lambda: env], ids=["itself", "by a function"])
def test_vector_environments_are_refused(wrap):
    vector = gym.vector.SyncVectorEnv([own_envs.Swing] * 3)
    sentence = "env: {} holds several environments; give the id of one, or a function that creates one, and num_envs={}"
    assert refused(wrap(vector)) == sentence.format("SyncVectorEnv", 3)
    assert refused(wrap(FakeVecEnv())) == sentence.format("FakeVecEnv", 4)
    vector.close()


@pytest.mark.parametrize(
    ("space", "frame", "numbers"),
    [
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), (4, 4, 3), 48),
        (spaces.Box(0, 255, (4, 4), np.uint8), (4, 4, 1), 16),
        (
            spaces.Dict(x=spaces.Box(-1, 1, (2,), np.float32), image=spaces.Box(0, 255, (4, 4), np.uint8)),
            (4, 4, 1),
            18,
        ),
    ],
    ids=["colours", "grey", "in a table"],
)
def test_images_are_apart_from_vectors_unless_they_are_flattened(space, frame, numbers):
    make = functools.partial(own_envs.Images, space)
    spec = given(make).spec(0.9, 2)
    assert (spec.frame, spec.frame_stack, spec.obs_dim) == (frame, 2, 2 if numbers == 18 else 0)
    flattened = given(make, wrappers=["gymnasium.wrappers:FlattenObservation"]).spec(0.9)
    assert (flattened.frame, flattened.obs_dim) == (None, numbers)


def test_arguments_are_not_for_an_object():
    assert refused(own_envs.Swing(), env_kwargs={"g": 1.0}).startswith("env_kwargs: cannot be given to an environment")


@pytest.mark.parametrize(
    "wrappers", ["own_envs:halve", own_envs.halve, None, 7], ids=["a name", "a function", "None", "a number"]
)
def test_wrappers_are_a_list(wrappers):
    assert refused("own/Text-v0", wrappers=wrappers).endswith(" is not a list; write wrappers=[…]")


@pytest.mark.parametrize("kwargs", [["g"], "g=1", {1: 2}, 7], ids=str)
def test_arguments_are_a_dict(kwargs):
    assert refused("own/Text-v0", env_kwargs=kwargs).endswith(" is not a dict of arguments by their names")


# wrappers


def test_wrappers_are_applied_in_every_process_the_first_one_innermost():
    usual = rewards(given("own/Text-v0"))
    for wrappers, factor in (
        (["own_envs:halve"], 0.5),
        ([own_envs.Doubling], 2.0),
        ([own_envs.Doubling, "own_envs:halve", own_envs.Doubling], 2.0),
        ([lambda env: own_envs.Doubling(env)], 2.0),
    ):
        for env in ("own/Text-v0", own_envs.make_swing, lambda: own_envs.make_swing(), gym.make("own/Text-v0")):
            found = given(env, wrappers=wrappers)
            np.testing.assert_allclose(rewards(found), factor * usual, rtol=1e-6)
            named = all(isinstance(w, (str, type)) for w in wrappers)
            assert (found.training.recipe is not None) == (named and env in ("own/Text-v0", own_envs.make_swing))
    order = given("own/Text-v0", wrappers=["own_envs:halve", own_envs.Doubling])
    assert order.wrappers == ("own_envs:halve", "own_envs:Doubling")
    assert order.recreatable
    assert isinstance(order.training.make(), own_envs.Doubling)
    assert not given("own/Text-v0", wrappers=[lambda env: env]).recreatable


BAD_WRAPPERS = {
    "nowhere_mod:f": "--wrapper nowhere_mod:f: module nowhere_mod cannot be imported (No module named 'nowhere_mod')",
    "own_envs:nothing": "--wrapper own_envs:nothing: module own_envs has no nothing",
    "own_envs:NUMBER": "--wrapper own_envs:NUMBER: is neither a Gymnasium wrapper nor a function of your own module",
    "own_envs:partly": "--wrapper own_envs:partly: is neither a Gymnasium wrapper nor a function of your own module",
    "own_envs:borrowed": "--wrapper own_envs:borrowed: is defined in another module; write faulty_envs:wrap",
    "os:fspath": "--wrapper os:fspath: is neither a Gymnasium wrapper nor a function of your own module",
    "own_envs:to_number": "--wrapper own_envs:to_number: returned 7, not an environment",
    "own_envs:break_down": "--wrapper own_envs:break_down: raised LookupError: no such wheel",
    "gymnasium.wrappers:TimeLimit": "--wrapper gymnasium.wrappers:TimeLimit: raised TypeError: TimeLimit.__init__()",
    "halve": "--wrapper halve: must be module:name, for example gymnasium.wrappers:FlattenObservation",
    7: "wrappers: 7 is neither a wrapper nor a function of an environment",
}


@pytest.mark.parametrize("wrapper", BAD_WRAPPERS, ids=str)
def test_a_wrapper_that_cannot_be_used_is_refused(wrapper):
    assert refused("own/Text-v0", wrappers=[wrapper]).startswith(BAD_WRAPPERS[wrapper])


def test_statistics_of_observations_belong_into_the_agent():
    for env, wrappers in (
        (gw.NormalizeObservation(gym.make("own/Text-v0")), ()),
        (gw.ClipReward(gw.NormalizeObservation(gym.make("own/Text-v0")), -1.0, 1.0), ()),
        ("own/Text-v0", ["gymnasium.wrappers:NormalizeObservation"]),
        (lambda: gw.NormalizeObservation(gym.make("own/Text-v0")), ()),
    ):
        sentence = refused(env, wrappers=wrappers)
        assert sentence.startswith("environment own/Text-v0: the statistics of NormalizeObservation would not be saved")
        assert sentence.endswith("set --normalise-observations (in Python normalise_observations=True)")


@pytest.mark.parametrize(
    "options",
    [
        {
            "env": "own/Text-v0",
            "wrappers": ["gymnasium.wrappers:NormalizeReward", "gymnasium.wrappers:FlattenObservation"],
        },
        {"env": gw.FlattenObservation(gw.NormalizeReward(gym.make("own/Text-v0")))},
        {"env": lambda: gw.NormalizeReward(gw.NormalizeReward(gym.make("own/Text-v0")))},
        {"env": "own/Text-v0", "eval_env": lambda: gw.NormalizeReward(gym.make("own/Text-v0"))},
    ],
    ids=["by name", "object", "function, twice", "of the evaluation"],
)
def test_evaluations_report_true_returns_where_rewards_are_normalised(options):
    found = given(**options)
    assert episode(found) == pytest.approx(episode(given("own/Text-v0")))
    assert any(isinstance(layer, gw.NormalizeReward) for layer in stack_of(found.training.make())) == (
        "eval_env" not in options
    )


# faults


@pytest.mark.parametrize("env", ["own/Faulty-v0", own_envs.Faulty()], ids=["process", "thread"])
def test_a_fault_shows_the_traceback_of_the_environment(env):
    found = given(env)
    with pool_of(found, plans=training_groups([0], 1)) as pool:
        pool.reset(0)
        pool.collect(np.zeros(pool.policy_shape), 0, 4, True)
        with pytest.raises(
            EnvironmentFault, match=r"^environment 0 of seed 0, step 0: step\(.*\) raised KeyError"
        ) as e:
            pool.collected()
    detail = e.value.detail
    assert detail.startswith("Environment traceback (most recent call last):")
    assert detail.endswith("KeyError: 'missing_key'")
    assert re.search(r'own_envs\.py", line \d+, in fetch\n\s+return table\["missing_key"\]', detail)
    assert f"{os.sep}lsac{os.sep}" not in detail
    if isinstance(env, str):
        assert e.value.__notes__ == [detail]
    else:
        assert isinstance(e.value.__cause__, KeyError)


def test_a_worker_without_a_start_message_ends_quietly():
    mine, theirs = Pipe()
    command = [sys.executable, "-m", "lsac.collect.worker", str(theirs.fileno())]
    worker = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
    theirs.close()
    mine.close()
    _, err = worker.communicate(timeout=60)
    assert (worker.returncode, err) == (0, "")


def test_arguments_cannot_name_another_environment():
    """They may come from a file, which must not choose what is imported."""
    spec = dataclasses.replace(gym.spec("own/Text-v0"), entry_point=lambda **kwargs: own_envs.Swing())
    recipe = recipe_of(spec, "own_envs:own/Text-v0", {"env_id": "this:X-v0"})
    assert json.loads(recipe.spec)["kwargs"] == {
        "env_id": "own_envs:own/Text-v0",
        "arguments": {"env_id": "this:X-v0"},
    }
    with pytest.raises(InputError, match=r"^--env-args env_id: own/Text-v0 has no argument of this name$"):
        create(recipe)
    assert "this" not in sys.modules
