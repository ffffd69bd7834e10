"""The description of a run: what is refused and in which words, what is written and read back, what presets set."""

import ast
import dataclasses
import inspect
import json
import math
import pkgutil
import textwrap
import traceback
from typing import get_type_hints

import jax
import pytest

from lsac import presets as lsac_presets
from lsac.agents import AGENTS, dipo, dreamer, ppo, redq, sac, trpo
from lsac.agents.lsac import agent as lsac
from lsac.agents.lsac import synthesis
from lsac.errors import InputError
from lsac.presets import preset, presets
from lsac.runs.experiment import Experiment, check, find_algorithm, from_json, longer, to_json, versions, warnings
from lsac.runs.folder import RunFolder

REFUSED = [
    ({"steps": 0}, "--steps 0: must be at least 1"),
    ({"seeds": 0}, "--seeds 0: must be at least 1"),
    ({"num_envs": 0}, "--num-envs 0: must be at least 1"),
    ({"chunk": -8}, "--chunk -8: must be at least 1"),
    ({"pixels": -1}, "--pixels -1: must lie between 0 and 1024"),
    ({"pixels": 1025}, "--pixels 1025: must lie between 0 and 1024"),
    ({"frame_stack": 0}, "--frame-stack 0: must be at least 1"),
    ({"replay_capacity": 0}, "--replay-capacity 0: must be at least 1"),
    ({"eval_episodes": 0}, "--eval-episodes 0: must be at least 1"),
    ({"log_every": 0}, "--log-every 0: must be at least 1"),
    ({"seed": -1}, "--seed -1: must not be negative"),
    ({"learning_starts": -5}, "--learning-starts -5: must not be negative"),
    ({"eval_every": -1}, "--eval-every -1: must not be negative"),
    ({"checkpoint_every": -1}, "--checkpoint-every -1: must not be negative"),
    ({"workers": -2}, "--workers -2: must not be negative"),
    ({"utd": 0.0}, "--utd 0.0: must be a finite number greater than 0"),
    ({"utd": math.nan}, "--utd nan: must be a finite number greater than 0"),
    ({"utd": math.inf}, "--utd inf: must be a finite number greater than 0"),
    ({"env_timeout": -3.0}, "--env-timeout -3.0: must be a finite number greater than 0"),
    ({"seed": 2**31 - 1, "seeds": 2}, "--seed 2147483647: must stay below 2147483648"),
    ({"gamma": 1.5}, "--gamma 1.5: must lie between 0 and 1"),
    ({"gamma": math.nan}, "--gamma nan: must lie between 0 and 1"),
    ({"chunk": 32, "num_envs": 5}, "--chunk 32: must be a multiple of --num-envs 5"),
    ({"utd": 0.3}, "--utd 0.3: times --chunk 32 must be a whole number of updates, at least 1"),
    ({"utd": 1e-12}, "--utd 1e-12: times --chunk 32 must be a whole number of updates, at least 1"),
    ({"batch_size": 0}, "--batch-size 0: must be at least 1"),
    ({"replay_capacity": 100}, "--batch-size 256: is larger than --replay-capacity 100"),
    ({"critics": 0}, "--critics 0: must be at least 1"),
    ({"hidden": ()}, "--hidden : needs at least one layer of at least one unit"),
    ({"hidden": (16, 0)}, "--hidden 16 0: needs at least one layer of at least one unit"),
    ({"target_entropy": math.nan}, "--target-entropy nan: must be a finite number"),
    ({"critic_lr": math.inf}, "--critic-lr inf: must be a finite number"),
    ({"actor_lr": 0.0}, "--actor-lr 0.0: must be greater than 0"),
    ({"alpha_lr": -1e-3}, "--alpha-lr -0.001: must not be negative"),
    ({"adam_beta2": 1.0}, "--adam-beta2 1.0: must be at least 0 and less than 1"),
    ({"adam_beta2": -0.1}, "--adam-beta2 -0.1: must be at least 0 and less than 1"),
    ({"alpha_init": 0.0}, "--alpha-init 0.0: must be greater than 0"),
    ({"tau": 0.0}, "--tau 0.0: must be greater than 0 and at most 1"),
    ({"tau": 5.0}, "--tau 5.0: must be greater than 0 and at most 1"),
    ({"activation": "swish"}, "--activation swish: must be one of relu, gelu, elu, tanh, mish"),
]
"""Options that cannot work, and the whole sentence: the flag, the value and what is right."""

AT_THE_EDGE = [
    {"steps": 1, "log_every": 1, "eval_episodes": 1, "chunk": 1},
    {"seed": 2**31 - 1},
    {"learning_starts": 0, "eval_every": 0, "checkpoint_every": 0, "workers": 0},
    {"gamma": 0.0},
    {"gamma": 1.0, "tau": 1.0},
    {"utd": 1 / 32},
    {"utd": 0.05, "chunk": 20},
    {"chunk": 32, "num_envs": 32},
    {"replay_capacity": 256, "batch_size": 256},
    {"hidden": (1,), "critics": 1, "activation": "tanh"},
    {"alpha_lr": 0.0, "adam_beta2": 0.0},
    {"normalise_observations": True},
    {"pixels": 1, "frame_stack": 1},
]
"""Options that just work."""


def experiment(**options):
    inner = {field.name for field in dataclasses.fields(sac.Config)}
    agent = sac.Config(**{name: value for name, value in options.items() if name in inner})
    return Experiment(agent, "Pendulum-v1", **{name: value for name, value in options.items() if name not in inner})


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=[sentence.split(":")[0] for _, sentence in REFUSED])
def test_what_cannot_work_is_refused_in_one_sentence(options, sentence):
    with pytest.raises(InputError) as refused:
        check(experiment(**options))
    assert str(refused.value) == sentence


@pytest.mark.parametrize("name", ["chains", "critics_per_chain"])
def test_what_lsac_counts_is_at_least_one(name):
    check(Experiment(lsac.Config(**{name: 1}), "Pendulum-v1"))
    with pytest.raises(InputError, match=rf"^--{name.replace('_', '-')} 0: must be at least 1$"):
        check(Experiment(lsac.Config(**{name: 0}), "Pendulum-v1"))


NO_ROOM = lsac.Config(chains=3, synthetic_capacity=2)


def test_every_chain_needs_a_share_of_the_generated_rows():
    check(Experiment(lsac.Config(chains=3, synthetic_capacity=3), "Pendulum-v1"))
    with pytest.raises(InputError, match=r"^--synthetic-capacity 2: must be at least --chains 3$"):
        check(Experiment(NO_ROOM, "Pendulum-v1"))


BACKWARDS = lsac.Config(anneal_from=100, anneal_to=50)


def test_annealing_does_not_end_before_it_starts():
    check(Experiment(lsac.Config(anneal_from=50, anneal_to=50), "Pendulum-v1"))
    with pytest.raises(InputError, match=r"^--anneal-from 100: must not be greater than --anneal-to 50$"):
        check(Experiment(BACKWARDS, "Pendulum-v1"))


ONE_ROW = lsac.Config(batch_size=1)
FEW_PAIRS = dipo.Config(pair_capacity=100)


def test_a_batch_that_is_half_generated_has_two_rows():
    check(Experiment(lsac.Config(batch_size=1, synthetic=False), "Pendulum-v1"))
    with pytest.raises(InputError, match=r"^--batch-size 1: must be at least 2, because half of it is generated$"):
        check(Experiment(ONE_ROW, "Pendulum-v1"))


GENERATORS = [
    (
        lsac.Config(generator=synthesis.Config(train_steps=25)),
        "--generator.train-steps 25: must be a multiple of --generator.ema-every 10",
    ),
    (
        lsac.Config(generator=synthesis.Config(sigma_min=10.0)),
        "--generator.sigma-min 10.0: must be less than --generator.sigma-max 10.0",
    ),
]


@pytest.mark.parametrize(("agent", "sentence"), GENERATORS, ids=["train_steps", "sigma_min"])
def test_options_of_the_generator_must_go_together(agent, sentence):
    check(Experiment(lsac.Config(generator=synthesis.Config(train_steps=20, sigma_min=9.9)), "Pendulum-v1"))
    with pytest.raises(InputError) as refused:
        check(Experiment(agent, "Pendulum-v1"))
    assert str(refused.value) == sentence


def test_every_transition_needs_its_improved_action():
    check(Experiment(FEW_PAIRS, "Pendulum-v1", steps=96))
    with pytest.raises(InputError, match=r"^--pair-capacity 100: must be at least the replay's 128 transitions$"):
        check(Experiment(FEW_PAIRS, "Pendulum-v1", steps=128))


ON_POLICY = [
    ({"utd": 2.0}, "--utd 2.0: must be 1, this agent learns on-policy"),
    ({"learning_starts": 64}, "--learning-starts 64: must be 0, this agent learns on-policy"),
    ({"normalise_observations": True}, "--normalise-observations: this agent does so by itself, see --obs-clip"),
    ({"scale_rewards": True}, "--scale-rewards: this agent scales its returns by itself"),
    ({"epochs": 0}, "--epochs 0: must be at least 1"),
    ({"minibatches": 0}, "--minibatches 0: must be at least 1"),
    ({"minibatches": 5}, "--minibatches 5: must divide --chunk 64"),
    ({"cg_steps": 0}, "--cg-steps 0: must be at least 1"),
    ({"backtracks": 0}, "--backtracks 0: must be at least 1"),
    ({"backtrack": 1.5}, "--backtrack 1.5: must be greater than 0 and at most 1"),
    ({"anneal_updates": -1}, "--anneal-updates -1: must not be negative"),
    ({"obs_clip": -1.0}, "--obs-clip -1.0: must not be negative"),
    ({"damping": -0.1}, "--damping -0.1: must not be negative"),
    ({"max_kl": 0.0}, "--max-kl 0.0: must be greater than 0"),
    ({"lam": 1.1}, "--lam 1.1: must lie between 0 and 1"),
]


def on_policy_experiment(**options):
    inner = {field.name for field in dataclasses.fields(trpo.Config)}
    agent = trpo.Config(**{name: value for name, value in options.items() if name in inner})
    rest = {name: value for name, value in options.items() if name not in inner}
    return Experiment(agent, "Pendulum-v1", **{"chunk": 64, "learning_starts": 0} | rest)


@pytest.mark.parametrize(("options", "sentence"), ON_POLICY, ids=[sentence.split(":")[0] for _, sentence in ON_POLICY])
def test_what_cannot_work_on_policy_is_refused_in_one_sentence(options, sentence):
    with pytest.raises(InputError) as refused:
        check(on_policy_experiment(**options))
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    "options", [{}, {"anneal_updates": 0, "obs_clip": 0.0, "lam": 1.0, "minibatches": 64}], ids=str
)
def test_what_works_on_policy_is_accepted(options):
    assert check(on_policy_experiment(**options)) is None


@pytest.mark.parametrize("options", AT_THE_EDGE, ids=str)
def test_values_at_the_edge_are_accepted(options):
    assert check(experiment(**options)) is None


FEW_STEPS = ({"replay_capacity": 63}, {"learning_starts": 63})


@pytest.mark.parametrize("few", FEW_STEPS, ids=str)
def test_a_window_is_filled_before_it_is_drawn(few):
    agent = dreamer.Config(batch_length=16)
    enough = dict.fromkeys(few, 64)
    check(Experiment(agent, "Pendulum-v1", num_envs=4, **enough))
    (name,) = few
    with pytest.raises(InputError, match=rf"^--{name.replace('_', '-')} 63: must be at least 64, --batch-length "):
        check(Experiment(agent, "Pendulum-v1", num_envs=4, **few))


def rules():
    """All functions that check rules between options."""
    configs = [module.Config for module in AGENTS.values()]
    nested = [hint for config in configs for hint in get_type_hints(config).values() if dataclasses.is_dataclass(hint)]
    return [check] + [config.check for config in [*configs, *nested] if hasattr(config, "check")]


def raises_in(function):
    """File and line of every raise statement of a function."""
    first = function.__code__.co_firstlineno
    body = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
    return {(inspect.getfile(function), first + node.lineno - 1) for node in body if isinstance(node, ast.Raise)}


def test_every_rule_between_options_has_an_example():
    written, seen = set().union(*map(raises_in, rules())), set()
    assert len(rules()) > 5
    refused = [experiment(**options) for options, _ in REFUSED] + [Experiment(NO_ROOM, "Pendulum-v1")]
    refused += [Experiment(BACKWARDS, "Pendulum-v1"), Experiment(sac.Config(), "no id")]
    refused += [Experiment(lsac.Config(log_std_min=1.0), "Pendulum-v1")]
    refused += [Experiment(redq.Config(critics=2, subset=3), "Pendulum-v1")]
    refused += [Experiment(agent, "Pendulum-v1") for agent in (ONE_ROW, FEW_PAIRS, *(a for a, _ in GENERATORS))]
    refused += [Experiment(dreamer.Config(batch_length=64), "Pendulum-v1", **few) for few in FEW_STEPS]
    refused += [on_policy_experiment(**options) for options, _ in ON_POLICY]
    refused += [Experiment(ppo.Config(minibatches=5), "Pendulum-v1", learning_starts=0)]
    for wrong in refused:
        try:
            check(wrong)
        except InputError as error:
            seen |= {(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)}
    assert written - seen == set(), "lines that reject something without an example here"


def test_an_unknown_algorithm_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"^algorithm sca: must be one of .*\bsac\b.*; did you mean sac\?$"):
        find_algorithm("sca")


def test_a_longer_run_is_annealed_by_its_new_end():
    at_the_end = on_policy_experiment(steps=640, anneal_updates=10)
    assert longer(at_the_end, 1_280).agent.anneal_updates == 20
    assert longer(on_policy_experiment(steps=640, anneal_updates=0), 1_280).agent.anneal_updates == 0
    assert longer(on_policy_experiment(steps=640), 1_280).agent.anneal_updates is None
    assert longer(experiment(steps=640), 1_280) == experiment(steps=1_280)


# derived numbers


@pytest.mark.parametrize(
    ("options", "capacity"),
    [
        ({"steps": 100, "replay_capacity": 1000}, 128),  # never more than the run collects, in whole chunks
        ({"steps": 1000, "replay_capacity": 100}, 128),
        ({"steps": 1000, "replay_capacity": 96}, 96),
    ],
)
def test_capacity_is_what_the_run_can_use_in_whole_chunks(options, capacity):
    assert experiment(chunk=32, **options).capacity == capacity


def test_an_on_policy_agent_holds_one_chunk_and_learns_from_it_once():
    given = on_policy_experiment(steps=1000, replay_capacity=512)
    assert (given.capacity, given.updates_per_chunk) == (64, 1)


def test_updates_of_a_chunk_and_the_list_of_seeds():
    assert experiment(chunk=20, utd=0.05).updates_per_chunk == 1
    assert experiment(chunk=32, utd=2.0).updates_per_chunk == 64
    assert experiment(seed=7, seeds=3).seed_list == [7, 8, 9]


# config.json


def written(**options):
    """The content of a config.json after a trip through its text."""
    return json.loads(json.dumps(to_json(experiment(**options))))


def test_config_comes_back_as_it_was_written():
    given = experiment(steps=77, seed=3, seeds=2, utd=0.5, gamma=0.9, hidden=(8, 4), target_entropy=-2.5, critics=3)
    data = json.loads(json.dumps(to_json(given)))
    found = from_json(data, "config.json")
    assert found == given
    assert (found.algorithm, type(found.agent.hidden)) == ("sac", tuple)


@pytest.mark.parametrize("algorithm", AGENTS)
def test_the_settings_of_every_algorithm_come_back_from_a_folder(algorithm, tmp_path):
    given = preset(algorithm, "default", "Pendulum-v1")
    RunFolder.create(tmp_path / "run", given)
    _, found = RunFolder.open(tmp_path / "run")
    assert (found.algorithm, found) == (algorithm, given)


def test_config_says_what_it_ran_on():
    found = written()["versions"]
    assert found == versions()
    assert {"lsac", "python", "jax", "jaxlib", "numpy", "gymnasium", "mujoco"} <= found.keys()
    assert all(found.values())


@pytest.mark.parametrize(
    ("place", "name", "nearest"),
    [
        ("experiment", "step", "steps"),
        ("experiment", "num_env", "num_envs"),
        ("agent", "batchsize", "batch_size"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(place, name, nearest):
    data = written()
    (data["experiment"] if place == "experiment" else data["experiment"]["agent"])[name] = 1
    with pytest.raises(InputError, match=rf"^here.*: unknown option {name}; did you mean {nearest}\?$"):
        from_json(data, "here")


def test_a_missing_key_is_named():
    data = written()
    del data["experiment"]["gamma"]
    with pytest.raises(InputError, match=r"^here: option gamma is missing$"):
        from_json(data, "here")


def test_a_run_from_before_an_option_did_what_it_did():
    data = written()
    data["experiment"]["agent"] |= {"adam_beta2": 0.5}
    later = ("time_limits_terminate", "normalise_observations", "pixels", "frame_stack")
    data["experiment"] |= dict.fromkeys(later[:2], True) | dict.fromkeys(later[2:], 3)
    asked = from_json(data, "here")
    assert (asked.agent.adam_beta2, asked.time_limits_terminate, asked.normalise_observations) == (0.5, True, True)
    assert (asked.pixels, asked.frame_stack) == (3, 3)
    del data["experiment"]["agent"]["adam_beta2"]
    for name in later:
        del data["experiment"][name]
    before = from_json(data, "here")
    assert (before.agent.adam_beta2, before.time_limits_terminate, before.normalise_observations) == (
        0.999,
        False,
        False,
    )
    assert (before.pixels, before.frame_stack) == (0, 1)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("steps", "1000", "int"),
        ("steps", True, "int"),
        ("steps", None, "int"),
        ("gamma", "0.9", "float"),
        ("gamma", False, "float"),
        ("env", 3, "str"),
        ("hidden", "256", "tuple"),
        ("hidden", [256, "256"], "int"),
        ("target_entropy", "auto", r"float \| None"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_the_right_type(name, value, kind):
    data = written()
    inner = name in data["experiment"]["agent"]
    (data["experiment"]["agent"] if inner else data["experiment"])[name] = value
    with pytest.raises(InputError, match=rf"^here.*, {name}: .* is not of type .*{kind}"):
        from_json(data, "here")


def test_a_float_is_read_as_a_whole_number_if_it_is_one():
    data = written()
    data["experiment"]["steps"] = 400.0
    assert (from_json(data, "here").steps, type(from_json(data, "here").steps)) == (400, int)
    data["experiment"]["steps"] = 10.5
    with pytest.raises(InputError, match=r"^here, steps 10.5: must be a whole number$"):
        from_json(data, "here")


def test_a_whole_number_is_read_as_a_float_where_a_float_belongs():
    data = written()
    data["experiment"]["gamma"] = 1
    found = from_json(data, "here")
    assert found.gamma == 1.0
    assert type(found.gamma) is float


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: {"hello": "world"}, "here: is not the configuration of a run"),
        (lambda data: ["format", 1], "here: is not the configuration of a run"),
        (lambda data: data | {"experiment": 3}, "here: is not the configuration of a run"),
        (lambda data: data | {"format": 2}, "here: format 2 is not 1, the one this version reads"),
        (lambda data: data | {"format": None}, "here: format None is not 1, the one this version reads"),
        (lambda data: data | {"experiment": data["experiment"] | {"agent": 1}}, "here, agent: must be a table"),
        (lambda data: data | {"algorithm": "dqn"}, "algorithm dqn: must be one of"),
    ],
    ids=["foreign", "list", "no table", "newer", "no format", "no agent", "other algorithm"],
)
def test_a_foreign_or_newer_config_is_refused(change, sentence):
    with pytest.raises(InputError) as refused:
        from_json(change(written()), "here")
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000], ids=["empty", "cut", "bytes", "deep"])
def test_a_config_that_is_no_json_is_refused_by_its_path(content, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^{path}: is not readable JSON"):
        RunFolder.open(tmp_path)


# presets


@pytest.mark.parametrize(("algorithm", "name"), [(a, name) for a in AGENTS for name in presets(a)])
def test_every_preset_is_a_valid_experiment(algorithm, name):
    found = preset(algorithm, name, "Pendulum-v1")
    check(found)
    assert found.env == "Pendulum-v1"
    assert isinstance(found.agent, find_algorithm(algorithm).Config)


def test_the_presets_of_sac_differ_where_they_say():
    default, paper, quick = (preset("sac", name, "X") for name in ("default", "paper", "quickstart"))
    assert default == Experiment(sac.Config(), "X")
    assert (paper.agent.hidden, paper.agent.alpha_init, paper.learning_starts) == ((256, 256, 256), 0.2, 10_000)
    assert paper.agent.alpha_lr == 0.0
    assert (quick.seeds, quick.steps, quick.agent.hidden) == (3, 8_000, (128, 128))


@pytest.mark.parametrize("algorithm", ["dipo", "sac", "td3", "ppo"])
def test_paper_presets_take_beta2_from_the_papers_table(algorithm):
    assert preset(algorithm, "paper", "X").agent.adam_beta2 == 0.99
    assert preset(algorithm, "default", "X").agent.adam_beta2 == 0.999


def test_an_unknown_preset_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match=r"^--preset fast: sac has default, official, tuned, paper, quickstart$"):
        preset("sac", "fast", "Pendulum-v1")


def test_every_algorithm_has_a_default_preset():
    for algorithm in AGENTS:
        assert next(iter(presets(algorithm))) == "default"


def test_an_algorithm_without_a_module_of_presets_has_the_defaults_of_its_options(monkeypatch):
    monkeypatch.setitem(AGENTS, "new", sac)
    assert list(presets("new")) == ["default"]
    assert preset("new", "default", "X") == Experiment(sac.Config(), "X")


def test_every_module_of_presets_has_the_name_of_an_algorithm():
    names = [module.name for module in pkgutil.iter_modules(lsac_presets.__path__)]
    assert names
    assert set(names) <= AGENTS.keys()


# warnings


@pytest.mark.parametrize(
    ("algorithm", "name", "backend", "warned"),
    [
        ("lsac", "default", "cpu", True),
        ("lsac", "paper", "cpu", True),
        ("lsac", "adam", "cpu", True),
        ("lsac", "default", "gpu", False),
        ("lsac", "quickstart", "cpu", False),
        ("sac", "default", "cpu", False),
    ],
)
def test_settings_for_a_gpu_are_announced_on_a_cpu(algorithm, name, backend, warned, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    found = warnings(preset(algorithm, name, "Pendulum-v1"))
    assert len(found) == warned
    if warned:
        assert found[0].startswith("warning: these settings of lsac are meant for a GPU")
        assert "--preset quickstart" in found[0]


def test_a_large_generator_alone_is_for_a_gpu():
    small_critics = lsac.Config(hidden=(64, 64))
    assert small_critics.needs_gpu
    assert not dataclasses.replace(small_critics, synthetic=False).needs_gpu
    assert not dataclasses.replace(small_critics, refresh_every=0).needs_gpu


@pytest.mark.parametrize(
    ("options", "start", "hint"),
    [
        ({"steps": 3_000, "learning_starts": 5_000}, 0, 288),
        ({"steps": 5_000, "learning_starts": 5_000}, 0, 480),
        ({"steps": 5_025, "learning_starts": 5_000}, 0, None),
        ({"steps": 3_000, "learning_starts": 5_000}, 3_008, None),
        ({"steps": 3_000, "learning_starts": 5_000}, 2_976, 288),
    ],
)
def test_a_run_without_updates_is_announced_with_a_way_out(options, start, hint):
    found = warnings(experiment(**options), start)
    if hint is None:
        assert found == []
    else:
        steps, starts = options.values()
        assert found == [
            f"warning: no update will be made: --steps {steps} is not more than --learning-starts {starts}; "
            f"try --learning-starts {hint}"
        ]
        assert experiment(**options | {"learning_starts": hint}).planned_updates() > 0
