"""Exported policies: every algorithm's ONNX file acts as the policy does, and a file that would not is not written."""

import contextlib
from pathlib import Path

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from commands import lsac
from small import config
from test_model import TINY

from lsac import DREAMER, DRQV2, LSAC, SAC, SAC_AE
from lsac.agents import AGENTS, VECTORS
from lsac.agents.normalised import normalised
from lsac.collect import snapshot
from lsac.envs.gymnasium import Spaces
from lsac.errors import InputError
from lsac.nn.normalisation import Moments
from lsac.runs.folder import RunFolder
from lsac.train import export, onnx_graph
from lsac.train.acting import Predictor, Recurrence

MOMENTS = Moments(jnp.array([5.0, -1.0, 0.0]), jnp.array([9.0, 0.25, 1.0]), jnp.array(100.0))


class Skewed(gym.Env):
    """An environment whose actions have other ranges than [−1, 1], different in each dimension."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))


SPACES = Spaces(Skewed())
OBS = np.random.default_rng(0).normal([5, -1, 0], [6, 1, 1], (64, 3)).astype(np.float32)


def policy_of(agent):
    """A policy with random parameters, and moments of observations far from 0 and 1 wherever it has such."""
    random = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda key: agent.policy(agent.init(key)), jax.random.key(0))
    is_moments = lambda x: isinstance(x, Moments)  # noqa: E731

    def made(x):
        scale = 0.3 * x.shape[-1] ** -0.5 if len(getattr(x, "shape", ())) == 2 else 0.1
        return MOMENTS if is_moments(x) else jnp.asarray(random.normal(0, scale, x.shape), x.dtype)

    return jax.tree.map(made, shapes, is_leaf=is_moments)


def exported(name, path, normalise=False, off=(0.0, 0.0), **options):
    """The result of an export, the session of its file, and the policy; `off` is added to what the file is compared
    with."""
    spec = SPACES.spec(0.99)
    agent = AGENTS[name].make(config(name, **options), spec)
    if normalise:
        agent = normalised(agent, spec, observations=True)
    policy = policy_of(agent)
    predictor = Predictor(agent, SPACES, 0, 1)

    def predict(rows):
        return predictor.act(policy, rows, Recurrence(None, None), True, 0)[0]

    compared = export.Compared({"observation": OBS}, predict(OBS) + np.float32(off))
    result = export.export(path, agent, policy, spec, SPACES, compared, {"algorithm": name})
    return result, onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), (predict, policy)


CASES = [(name, normalise) for name in VECTORS for normalise in (False, True)]
BY_THEMSELVES = ("ppo", "trpo")
"""Algorithms that normalise observations always, and reject the option."""


@pytest.mark.parametrize(("name", "normalise"), [x for x in CASES if not (x[1] and x[0] in BY_THEMSELVES)])
def test_every_algorithm_acts_in_onnx_as_in_jax(name, normalise, tmp_path):
    result, session, (predict, _) = exported(name, tmp_path / "policy.onnx", normalise)
    for rows in (OBS, OBS[:1]):  # the size of the batch is open
        (actions,) = session.run(None, {"observation": rows})
        np.testing.assert_allclose(actions, predict(rows), atol=5e-5)
        assert actions.dtype == np.float32
    assert actions.shape == (1, 2)
    assert result.difference <= 5e-5
    assert np.ptp(predict(OBS), axis=0).max() > 0.01, "the actions are not all the same"


def test_the_numbers_of_sac_by_hand(tmp_path):
    """tanh of the first half of the last layer's output, mapped to [−2, 1] × [0, 5]."""
    _, session, (_, policy) = exported("sac", tmp_path / "policy.onnx", normalise=True)
    x = np.clip((OBS - np.asarray(MOMENTS.mean)) / np.sqrt(np.asarray(MOMENTS.variance) + 1e-8), -10, 10)
    first, last = policy.inner.mlp.layers
    hidden = np.maximum(x @ np.asarray(first.weight).T + np.asarray(first.bias), 0)
    squashed = np.tanh((hidden @ np.asarray(last.weight).T + np.asarray(last.bias))[:, :2])
    (actions,) = session.run(None, {"observation": OBS})
    np.testing.assert_allclose(actions, [-0.5, 2.5] + squashed * [1.5, 2.5], atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "elu", "tanh", "mish"])
def test_other_activations(activation, tmp_path):
    result, *_ = exported("td3", tmp_path / "policy.onnx", activation=activation)
    assert result.difference < 1e-5


@pytest.mark.parametrize(
    "options",
    [{"embedding": True}, {"actor_network": "sphere"}, {"slow_evaluation": True}],
    ids=lambda x: next(iter(x)),
)
def test_other_actors_of_lsac(options, tmp_path):
    result, session, _ = exported("lsac", tmp_path / "policy.onnx", **options)
    assert result.difference < 1e-5
    (actions,) = session.run(None, {"observation": OBS})
    assert np.ptp(actions, axis=0).max() > 0.003


def test_a_policy_with_a_memory_is_refused(tmp_path):
    with pytest.raises(InputError, match="has a memory"):
        exported("lsac", tmp_path / "policy.onnx", actors="per_chain")


def test_the_file_says_what_it_is(tmp_path):
    result, session, _ = exported("td3", tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    assert [x.version for x in model.opset_import] == [onnx_graph.OPSET]
    assert {x.key: x.value for x in model.metadata_props} == {"algorithm": "td3"}
    assert f"opset {onnx_graph.OPSET}" in result.sentence()
    assert "[batch, 3]" in result.sentence()
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape, made.name, made.shape) == ("observation", ["batch", 3], "action", ["batch", 2])
    assert [node.op_type for node in model.graph.node][:3] == ["MatMul", "Add", "Relu"]
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"], "nothing is left beside it"


class SeenAndFelt(gym.Env):
    """Random images, and a number beside them; episodes of five steps."""

    observation_space = gym.spaces.Dict(
        {"eye": gym.spaces.Box(0, 255, (20, 18, 1), np.uint8), "felt": gym.spaces.Box(-1, 1, (1,), np.float32)}
    )
    action_space = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}

    def step(self, action):
        self.count += 1
        return self._seen(), 0.0, False, self.count == 5, {}

    def _seen(self):
        eye = self.np_random.integers(0, 256, (20, 18, 1)).astype(np.uint8)
        return {"eye": eye, "felt": self.np_random.uniform(-1, 1, 1).astype(np.float32)}


@pytest.mark.parametrize(
    ("kind", "preset"), [(DRQV2, "quickstart"), (SAC_AE, "quickstart"), (LSAC, "pixels_quickstart")]
)
def test_a_policy_of_images_acts_in_onnx_as_predict_does_with_its_memory_of_frames(kind, preset, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "COMPARED", 12)
    monkeypatch.setattr(export, "TOGETHER", 5)
    model = kind(SeenAndFelt, preset=preset, seeds=1, pixels=0, frame_stack=3)
    result = model.export(tmp_path / "policy.onnx")
    assert "image uint8 [batch, 20, 18, 3] and observation float32 [batch, 1] → action" in result.sentence()
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    env = SeenAndFelt()
    obs, _ = env.reset(seed=7)
    state, frames, acted = None, [obs["eye"]] * 3, []
    for _ in range(5):
        action, state = model.predict(obs, state, deterministic=True)
        inputs = {"image": np.concatenate(frames, axis=-1)[None], "observation": obs["felt"][None]}
        np.testing.assert_allclose(session.run(None, inputs)[0][0], action, atol=1e-4)
        acted.append(action)
        obs, *_ = env.step(action)
        frames = [*frames[1:], obs["eye"]]
    assert np.ptp(acted, axis=0).max() > 1e-3


def test_a_policy_of_images_with_a_memory_of_its_own_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "COMPARED", 2)
    model = DREAMER("lsac/SeenColour-v0", preset="quickstart", seeds=1)
    with pytest.raises(InputError, match="has a memory"):
        model.export(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_a_wrong_graph_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setitem(onnx_graph.ELEMENTWISE, "tanh", "Sigmoid")
    with pytest.raises(InputError, match="differ from the policy's by"):
        exported("td3", tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("off", "written"), [((0, 0.004), True), ((0.004, 0), False), ((0, np.nan), False)])
def test_actions_may_differ_by_a_thousandth_of_their_own_range(off, written, tmp_path):
    """The ranges are 3 and 5."""
    with contextlib.nullcontext() if written else pytest.raises(InputError, match="differ from the policy's by"):
        exported("td3", tmp_path / "policy.onnx", off=off)
    assert (tmp_path / "policy.onnx").exists() == written


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (".", "export: . is a folder, should be a file, for example policy.onnx"),
        ("folder", "export: folder is a folder, should be a file, for example folder/policy.onnx"),
        ("policy.txt", "export: policy.txt must end in .onnx, for example policy.onnx"),
        ("policy", "export: policy must end in .onnx, for example policy.onnx"),
        ("file/policy.onnx", "export: file/policy.onnx cannot be written (File exists)"),
        ("file/deep/policy.onnx", "export: file/deep/policy.onnx cannot be written (Not a directory)"),
    ],
)
def test_where_no_file_can_be_is_refused(path, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    with pytest.raises(InputError) as refused:
        exported("td3", Path(path))
    assert str(refused.value) == sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_the_command_refuses_another_kind_of_file_before_it_looks_at_the_run():
    result = lsac("export", "nowhere", "--out", "policy.txt")
    assert (result.code, result.sentence) == (2, "lsac: --out policy.txt: must end in .onnx, for example policy.onnx")
    assert lsac("export", "nowhere", "--out", "policy.ONNX").sentence.startswith("lsac: nowhere")


def test_an_unknown_operation_is_named(tmp_path, monkeypatch):
    monkeypatch.delitem(onnx_graph.ELEMENTWISE, "tanh")
    with pytest.raises(InputError, match="because it contains tanh"):
        exported("td3", tmp_path / "policy.onnx")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"pip install 'lsac\[export\]'"):
        exported("td3", tmp_path / "policy.onnx")


# a model


make = lambda: gym.make("Pendulum-v1")  # noqa: E731
"""A lambda, so that its simulators run in this process, which takes no time to start."""


def acted(path, obs):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"observation": obs})[0]


def test_every_export_of_a_model_is_of_its_policy_at_that_time(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "COMPARED", 8)
    model, obs = SAC(make, **TINY).learn(32), OBS[:4]
    before = model.predict(obs, deterministic=True)[0]
    model.export(tmp_path / "before.onnx")
    model.learn(32)
    model.export(tmp_path / "after.onnx")
    after = model.predict(obs, deterministic=True)[0]
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(acted(tmp_path / "before.onnx", obs), before, atol=1e-5)
    np.testing.assert_allclose(acted(tmp_path / "after.onnx", obs), after, atol=1e-5)


def test_a_best_policy_is_of_the_step_at_which_its_seed_was_best(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "COMPARED", 8)
    folder = tmp_path / "run"
    SAC(make, seeds=2, **TINY).learn(32, out=folder)
    checkpoints = RunFolder(folder).checkpoints
    model = SAC.load(folder, make)
    policies = np.stack([snapshot.flatten(model._policy(index)) for index in (0, 1)])
    record = {"returns": [-5.0, -9.0], "steps": [8, 24]}
    checkpoints.save_best(policies, record)
    best = SAC.load(folder, make, policy="best")
    assert (best.num_timesteps, best.best_seed) == (24, 0)
    for seed, step in ((0, "8"), (1, "24")):
        best.export(tmp_path / "policy.onnx", seed=seed)
        assert {x.key: x.value for x in onnx.load(tmp_path / "policy.onnx").metadata_props}["step"] == step
        assert SAC.load(folder, make, policy="best", seed=seed).num_timesteps == int(step)
