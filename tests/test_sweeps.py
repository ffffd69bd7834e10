"""Suites, plans and the words of their commands; what a sweep finds in folders, and how runs share a machine."""

import dataclasses
import json
import textwrap
from collections import Counter

import pytest
from commands import lsac

from lsac.agents import VECTORS
from lsac.cli import training as train_command
from lsac.envs import sources
from lsac.errors import InputError
from lsac.presets import preset
from lsac.runs.folder import RunFolder
from lsac.sweeps import machine, on_ray, suites
from lsac.sweeps.on_ray import Node, Part, parts
from lsac.sweeps.plan import check_plan, experiment, from_file, narrowed, write_plan
from lsac.sweeps.runs import Progress, finished, progress, require_same
from lsac.sweeps.suites import SUITES, suite
from lsac.sweeps.words import resume_words, shown, train_words
from lsac.train import run as trainer

# suites


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_makes_valid_experiments_with_names_of_their_own(name):
    plan = suite(name)
    check_plan(plan)
    assert len({item.path for item in plan}) == len(plan) > 2
    assert len({item.experiment for item in plan}) == len(plan), "nothing is trained twice"


def test_the_suites_have_the_tasks_and_settings_of_the_paper():
    tasks = {name: {item.experiment.env for item in suite(name)} for name in SUITES}
    assert [len(tasks[name]) for name in ("mujoco6", "dmc12", "mazes")] == [6, 12, 2]
    assert all(env.endswith("-v4") for env in tasks["mujoco6"])
    assert {item.experiment.algorithm for item in suite("mujoco6")} == set(VECTORS)
    assert {item.experiment.action_repeat for item in suite("dmc12")} == {2}
    ablations = {item.label: item.experiment.agent for item in suite("ablations") if "Half" in item.path}
    assert {agent.chains for agent in ablations.values()} == {1, 10, 20, 50}
    assert {agent.sampler for agent in ablations.values()} == {"asgld", "adam"}
    for option in ("distributional", "synthetic", "action_gradient"):
        assert {getattr(agent, option) for agent in ablations.values()} == {True, False}
    varied = [item.experiment.agent for item in suite("sensitivity")]
    assert not any(agent.adaptive_share for agent in (*ablations.values(), *varied)), "generated data stay in all"
    assert {agent.bias_factor for agent in varied} == {10, 1, 0.1, 0.01}
    assert {agent.critic_lr for agent in varied} == {1e-2, 1e-3, 3e-4, 1e-4}
    assert {agent.inverse_temperature for agent in varied} == {1e5, 1e6, 1e7, 1e8, 1e9}
    assert {agent.refresh_every for agent in varied} == {10**3, 10**4, 10**5}
    assert {agent.refresh_growth for agent in (*ablations.values(), *varied)} == {0.0}, "every means every"


def test_the_point_maze_has_both_layouts():
    plan = [item for item in suite("mazes", ["sac"]) if "PointMaze" in item.experiment.env]
    assert {item.label: item.experiment.env_args for item in plan} == {"sac": (), "sac-open": ("layout=open",)}


def test_a_suite_takes_a_preset():
    for item in suite("mujoco6", preset="paper"):
        e = item.experiment
        assert e == dataclasses.replace(preset(e.algorithm, "paper", e.env), seeds=10)
    lsac_alone = {item.label: item.experiment.agent for item in suite("ablations", preset="paper")}
    assert {agent.actor_clip for agent in lsac_alone.values()} == {0.7}
    tuned = suite("smoke", ["sac", "td3"], preset="tuned")
    assert [item.experiment for item in tuned] == [
        preset(name, found, "Pendulum-v1") for name, found in (("sac", "tuned"), ("td3", "default"))
    ]
    assert not {item.experiment for item in suite("smoke")} & {item.experiment for item in tuned}


def test_a_preset_that_an_algorithm_lacks_is_said():
    words = ("sweep", "--suite", "smoke", "--algorithms", "sac", "td3", "--list", "--preset")
    result = lsac(*words, "tuned")
    assert result.err == "--preset tuned: there is none for td3; default is used\n"
    assert result.out.splitlines()[0].endswith("--out runs/smoke-tuned/Pendulum-v1/sac")
    assert lsac(*words, "paper").err == ""


def test_the_papers_regime_is_a_million_updates_from_twenty_simulators():
    for item in suite("paper20m"):
        e = item.experiment
        assert (e.num_envs, e.utd, e.steps) == (20, 0.05, 20_000_000)
        assert e.planned_updates() == pytest.approx(1_000_000, rel=1e-3)


def test_a_suite_takes_other_algorithms_if_it_compares_them():
    assert [item.experiment.algorithm for item in suite("smoke", ["ppo", "ppo", "sac"])] == ["ppo", "sac"]
    with pytest.raises(InputError, match="--algorithms: the suite ablations is about LSAC alone"):
        suite("ablations", ["sac"])
    with pytest.raises(InputError, match="--suite nothing: must be one of smoke"):
        suite("nothing")
    with pytest.raises(InputError, match="algorithm sca: must be one of"):
        suite("smoke", ["sca"])


# words


class Read(Exception):
    pass


def read(words, monkeypatch):
    """The experiment that `lsac train` reads from its words."""

    def new_folder(path, experiment, *_):
        raise Read(experiment, path)

    monkeypatch.setattr(trainer, "new_folder", new_folder)
    monkeypatch.setattr(sources, "of_experiment", lambda experiment: None)
    with pytest.raises(Read) as caught:
        train_command.train(list(words[1:]))
    return caught.value.args


def different_words():
    """One experiment of every suite for each way in which its options differ from those of others."""
    found = {}
    for name in SUITES:
        for item in suite(name):
            words = train_words(item.experiment)
            found.setdefault((words[1], *words[4:]), item)
    return list(found.values())


def test_a_command_gives_the_experiment_back(monkeypatch):
    items = [
        *different_words(),
        experiment("lsac", "Hopper-v5", preset="released", target_entropy=-3.5, hidden=(8, 4)),
        experiment(
            "sac", "Hopper-v5", env_args=("a=-1", "b=x y"), wrappers=("gymnasium.wrappers:TimeAwareObservation",)
        ),
        experiment("lsac", "Hopper-v5", generator__width=64, generator__warm_start=False, released__delay=2, seed=7),
        experiment("dipo", "Hopper-v5", preset="official", critic_lr=1e-7, chunk=40, utd=0.05),
        experiment("redq", "Hopper-v5", target_entropy=None),
    ]
    assert len(items) > 40
    for item in items:
        found, out = read(train_words(item.experiment, "somewhere"), monkeypatch)
        assert found == item.experiment, shown(train_words(item.experiment))
        assert str(out) == "somewhere"


def test_a_command_is_short_where_a_preset_says_the_same():
    plain = experiment("sac", "Pendulum-v1", preset="quickstart", steps=100)
    assert train_words(plain.experiment) == [
        *("train", "sac", "--env", "Pendulum-v1", "--preset", "quickstart", "--steps", "100")
    ]
    assert resume_words(plain.experiment, "there") == ["resume", "there", "--steps", "100"]
    own = dataclasses.replace(plain.experiment, env="mine:Track-v0")
    assert resume_words(own, "there") == ["resume", "there", "--module", "mine", "--steps", "100"]


# plans

PLAN = """
from lsac.sweeps.plan import experiment

{name} = {value}
"""


def plan_file(tmp_path, value, name="experiments"):
    path = tmp_path / "plan.py"
    path.write_text(textwrap.dedent(PLAN).format(name=name, value=value))
    return path


def test_a_file_defines_a_list_or_a_function(tmp_path):
    text = "[experiment('sac', 'Pendulum-v1', label=f'lr-{lr:g}', critic_lr=lr) for lr in (1e-3, 3e-4)]"
    plan = from_file(plan_file(tmp_path, text))
    assert [item.path for item in plan] == ["Pendulum-v1/lr-0.001", "Pendulum-v1/lr-0.0003"]
    assert [item.experiment.agent.critic_lr for item in plan] == [1e-3, 3e-4]
    assert from_file(plan_file(tmp_path, f"lambda: {text}")) == plan


@pytest.mark.parametrize(
    ("value", "name", "sentence"),
    [
        ("[]", "other", "plan.py: must define experiments, a list of experiments or a function that returns one"),
        ("lambda: None", "experiments", "must define experiments"),
        ("['sac']", "experiments", "experiments holds 'sac', which lsac.sweeps.plan.experiment did not make"),
        ("[1 / 0]", "experiments", "plan.py: cannot be run (ZeroDivisionError: division by zero)"),
        ("[experiment('sac', 'Pendulum-v1', critic_rl=1)]", "experiments", "critic_rl: no such option; did you mean"),
        ("[experiment('sac', 'Pendulum-v1', label=0.001)]", "experiments", "label 0.001 must be a string"),
        ("[experiment('sac', 3)]", "experiments", "plan.py: experiment: env 3 must be a string"),
        ("[experiment(['sac'], 'Pendulum-v1')]", "experiments", "algorithm a list must be a string"),
        ("[experiment('sac', 'Pendulum-v1', label=0)]", "experiments", "label 0 must be a string"),
        ("exit('x')", "experiments", "plan.py: cannot be run (SystemExit: x)"),
        ("[experiment('sac', 'Pendulum-v1', preset='no')]", "experiments", "--preset no: sac has default"),
        ("[]", "experiments", "the plan is empty"),
        ("[experiment('sac', 'Pendulum-v1')] * 2", "experiments", "label sac: occurs twice on Pendulum-v1"),
        ("[experiment('sac', 'Pendulum-v1', label='../x')]", "experiments", "label ../x: must be letters"),
        (
            "[experiment('sac', 'Pendulum-v1', chunk=7, num_envs=2)]",
            "experiments",
            "Pendulum-v1/sac: --chunk 7: must be",
        ),
        ("[experiment('sac', 'Pendulum-v9')]", "experiments", "--env Pendulum-v9: no such Gymnasium environment"),
    ],
)
def test_a_bad_file_gets_a_sentence(tmp_path, value, name, sentence):
    result = lsac("sweep", plan_file(tmp_path, value, name), "--out", tmp_path / "out")
    assert result.code == 2
    assert sentence in [line for line in result.err.splitlines() if line.startswith("lsac: ")][-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name a Python file, or one suite with --suite (smoke, mujoco6"),
        (["plan.py", "--suite", "smoke"], "name a Python file, or one suite"),
        (["plan.py", "--preset", "paper"], "--preset paper: is an option of --suite"),
        (["missing.py"], "missing.py: no such file"),
        (["--suite", "smoke", "--tasks", "Ant*"], "--tasks Ant*: the plan has Pendulum-v1"),
        (["--suite", "smoke", "--address", "auto"], "--address auto: needs --engine ray"),
        (
            ["--suite", "smoke", "--engine", "ray", "--address", "127.0.0.1:1"],
            "--address 127.0.0.1:1: no Ray cluster answ",
        ),
        (
            ["--suite", "smoke", "--preset", "no"],
            "--preset no: none of the algorithms has it; they have default, strong",
        ),
        (["--suite", "smoke", "--jobs", "0"], "--jobs 0: must be at least 1"),
        (["--suite", "smoke", "--seeds", "0"], "--seeds 0: must be at least 1"),
    ],
)
def test_bad_words_get_a_sentence(words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = lsac("sweep", *words)
    assert result.code == 2
    assert sentence in result.sentence


def test_tasks_seeds_and_steps_narrow_a_plan(tmp_path):
    plan = narrowed(suite("mujoco6", ["sac"]), (), ["H*", "Ant-v4"], seeds=2, steps=64)
    assert [item.experiment.env for item in plan] == ["HalfCheetah-v4", "Ant-v4", "Hopper-v4", "Humanoid-v4"]
    assert {(item.experiment.seeds, item.experiment.steps) for item in plan} == {(2, 64)}
    assert len(narrowed(suite("smoke"), ["td3"])) == 1
    shown = lsac("sweep", "--suite", "smoke", "--algorithms", "sac", "--steps", "64", "--list")
    assert shown.out == (
        "lsac train sac --env Pendulum-v1 --preset quickstart --steps 64 --out runs/smoke/Pendulum-v1/sac\n"
    )


def test_the_list_of_a_sweep_grows_and_stays_of_one_name(tmp_path):
    sac, dsact = suite("smoke", ["sac"]), suite("smoke", ["dsact"])
    write_plan(tmp_path, "smoke", sac)
    write_plan(tmp_path, "smoke", dsact)
    write_plan(tmp_path, "smoke", [sac[0]._replace(label="wide")])
    assert json.loads((tmp_path / "sweep.json").read_text()) == {
        "name": "smoke",
        "experiments": [
            {"path": "Pendulum-v1/sac", "label": "SAC", "env": "Pendulum-v1", "algorithm": "sac"},
            {"path": "Pendulum-v1/dsact", "label": "DSAC-T", "env": "Pendulum-v1", "algorithm": "dsact"},
            {"path": "Pendulum-v1/wide", "label": "wide", "env": "Pendulum-v1", "algorithm": "sac"},
        ],
    }
    with pytest.raises(InputError, match="holds the sweep 'smoke', not mujoco6; choose another"):
        write_plan(tmp_path, "mujoco6", sac)
    (tmp_path / "sweep.json").write_text('{"experiments": 3}')
    with pytest.raises(InputError, match=r"sweep\.json: is not the list of a sweep's experiments"):
        write_plan(tmp_path, "smoke", sac)


def test_a_plan_is_checked_before_anything_starts():
    check_plan(suite("smoke"))
    with pytest.raises(InputError, match="--env Pendulum-v9"):
        check_plan([experiment("sac", "Pendulum-v9")])


# folders

SMALL = experiment("sac", "Pendulum-v1", steps=64, hidden=(8,), chunk=8).experiment


def test_another_run_in_the_folder_is_refused(tmp_path):
    require_same(tmp_path / "new", SMALL)
    RunFolder.create(tmp_path / "run", SMALL).release()
    folder = tmp_path / "run"
    require_same(folder, SMALL)
    require_same(folder, dataclasses.replace(SMALL, workers=3, env_timeout=5.0))
    require_same(folder, dataclasses.replace(SMALL, steps=128))
    other = dataclasses.replace(SMALL.agent, critic_lr=1e-4)
    for wanted, sentence in (
        (
            dataclasses.replace(SMALL, agent=other),
            "holds a run with --critic-lr 0.0003, not 0.0001; choose another --out",
        ),
        (dataclasses.replace(SMALL, seeds=2), "holds a run with --seeds 1, not 2"),
        (dataclasses.replace(SMALL, steps=32), "its run has 64 steps, which a sweep does not shorten to 32"),
        (experiment("td3", "Pendulum-v1", steps=64).experiment, "holds a run with sac, not td3"),
    ):
        with pytest.raises(InputError, match=sentence):
            require_same(folder, wanted)
    assert not finished(folder, 64)
    assert not finished(tmp_path / "new", 64)


def test_progress_is_read_from_the_last_lines(tmp_path):
    assert progress(tmp_path) == Progress()
    lines = [{"step": 8, "seed": seed, "time/fps": 50.0, "rollout/ep_rew_mean": seed - 3.0} for seed in (0, 1)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 16, "se')
    found = progress(tmp_path)
    assert found == Progress(8, 50.0, -2.5, False)
    assert found.seconds_left(dataclasses.replace(SMALL, seeds=2)) == 2 * 56 / 50
    evaluated = [{"step": 8, "seed": seed, "eval/mean_reward": 10.0 * seed} for seed in (0, 1)]
    (tmp_path / "metrics.jsonl").write_text(text + "".join(json.dumps(line) + "\n" for line in evaluated))
    assert progress(tmp_path)[2:] == (5.0, True)


# machines


def test_gpus_are_those_that_are_allowed():
    listed = "0, GPU-aa, 1000, 2000\n1, GPU-bb, 500, 2000\n"
    assert [gpu.name for gpu in machine.visible(listed, None)] == ["0", "1"]
    assert machine.visible(listed, "1") == [machine.Gpu("1", 500 * 2**20, 2000 * 2**20)]
    assert [gpu.name for gpu in machine.visible(listed, "GPU-aa")] == ["GPU-aa"]
    assert machine.visible(listed, "") == []


def test_runs_share_gpus_as_their_memory_allows():
    giga = 2**30
    two = [machine.Gpu("0", 80 * giga, 80 * giga), machine.Gpu("1", 80 * giga, 80 * giga)]
    shares = machine.shared_gpus(two, 30 * giga, 16, None, 100)
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in shares.slots] == ["0", "1", "0", "1"]
    assert {slot["XLA_PYTHON_CLIENT_MEM_FRACTION"] for slot in shares.slots} == {"0.450"}
    assert shares.workers == 4
    assert machine.shared_gpus(two, 200 * giga, 16, None, 100).jobs == 2, (
        "each may try, and is told why it does not fit"
    )
    assert machine.shared_gpus(two, giga, 16, None, 100).jobs == 2 * machine.RUNS_PER_GPU
    assert machine.shared_gpus(two, giga, 16, None, 3).jobs == 3
    assert machine.shared_gpus(two, giga, 2, None, 100).jobs == 2, "no more than there are cores"
    odd = machine.shared_gpus(two, giga, 16, 3, 100)
    assert [slot["XLA_PYTHON_CLIENT_MEM_FRACTION"] for slot in odd.slots] == ["0.450", "0.900", "0.450"]


def test_runs_go_to_the_gpu_on_which_they_fit():
    giga = 2**30
    two = [machine.Gpu("0", 80 * giga, 80 * giga), machine.Gpu("1", 12 * giga, 80 * giga)]
    used = Counter(slot["CUDA_VISIBLE_DEVICES"] for slot in machine.shared_gpus(two, 10 * giga, 16, None, 100).slots)
    assert used == {"0": 4, "1": 1}
    forced = machine.shared_gpus(two, 10 * giga, 16, 7, 100).slots
    assert Counter(slot["CUDA_VISIBLE_DEVICES"] for slot in forced) == {"0": 6, "1": 1}, "--jobs says so"
    assert {slot["XLA_PYTHON_CLIENT_MEM_FRACTION"] for slot in forced} == {"0.150", "0.135"}
    busy = [two[0], machine.Gpu("1", giga, 80 * giga)]
    assert {slot["CUDA_VISIBLE_DEVICES"] for slot in machine.shared_gpus(busy, 10 * giga, 16, None, 100).slots} == {"0"}


def test_runs_share_cores():
    assert machine.shared_cores(8, 3, 100) == machine.Shares([{}, {}, {}], 2)
    assert machine.shared_cores(8, 3, 1) == machine.Shares([{}], 0), "alone, a run measures what is best for it"
    with pytest.raises(InputError, match="--jobs 0"):
        machine.share([SMALL], 0)


# machines of Ray

EIGHT, ONE_GPU = Node(8.0, 0), Node(8.0, 1)


@pytest.mark.parametrize(
    ("nodes", "jobs", "experiments", "expected"),
    [
        ([EIGHT] * 4, None, 3, (3, Part(8.0, 0.0))),
        ([EIGHT] * 4, None, 100, (16, Part(2.0, 0.0))),
        ([EIGHT] * 4, 5, 100, (5, Part(4.0, 0.0))),
        ([Node(64.0, 0), Node(4.0, 0)], 2, 100, (2, Part(32.0, 0.0))),
        ([Node(2.0, 0)], 3, 100, (3, Part(0.666, 0.0))),
        ([ONE_GPU] * 4, None, 2, (2, Part(8.0, 1.0))),
        ([Node(8.0, 2)], 3, 100, (3, Part(2.0, 0.5))),
        ([ONE_GPU] * 2, 5, 100, (5, Part(2.0, 0.333))),
        ([Node(0.0, 0), EIGHT, Node(4.0, 1)], None, 100, (1, Part(4.0, 1.0))),
    ],
)
def test_tasks_of_ray_fit_on_a_machine_and_as_many_as_are_announced(nodes, jobs, experiments, expected):
    found, part = parts(nodes, jobs, experiments)
    assert (found, part) == expected
    assert part.gpus <= 1, "a run sees one device"
    with_gpus = [node for node in nodes if node.gpus] if part.gpus else nodes
    rooms = [(int(node.cpus // part.cpus), int(node.gpus / part.gpus) if part.gpus else found) for node in with_gpus]
    assert sum(map(min, rooms)) >= found


def test_a_cluster_that_fits_no_task_gets_a_sentence():
    for nodes in ([], [Node(0.0, 0)], [Node(0.0, 2)]):
        with pytest.raises(InputError, match="none of its machines offers a CPU"):
            parts(nodes, None, 3)
    with pytest.raises(InputError, match="--jobs 2000: the machines of Ray have no room for so many"):
        parts([Node(1.0, 0)], 2000, 3000)


class PretendRay:
    """A cluster of these machines; keeps what its tasks ask for."""

    def __init__(self, *nodes):
        self._nodes, self.asked = nodes, {}

    def nodes(self):
        return [{"Alive": alive, "Resources": {"memory": 1.0, **found}} for alive, found in self._nodes]

    def remote(self, function):
        return self

    def options(self, **asked):
        self.asked = asked


@pytest.mark.parametrize(("address", "share"), [(None, "0.225"), ("auto", "0.450")])
def test_two_runs_on_a_gpu_of_ray_share_what_is_free(address, share, monkeypatch):
    giga = 2**30
    ray = PretendRay((True, {"CPU": 8.0, "GPU": 1.0}), (False, {"CPU": 64.0, "GPU": 8.0}))
    monkeypatch.setattr(on_ray, "_started", lambda address: ray)
    monkeypatch.setattr(machine, "gpus", lambda: [machine.Gpu("0", 40 * giga, 80 * giga)])
    engine = on_ray.OnRay(2, address, [SMALL] * 3)
    assert (engine.jobs, engine.workers) == (2, 4)
    assert (ray.asked["num_cpus"], ray.asked["num_gpus"]) == (4.0, 0.5)
    assert engine._environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == share


def test_the_memory_of_gpus_limits_the_runs_of_ray_on_this_machine(monkeypatch):
    giga = 2**30
    monkeypatch.setattr(on_ray, "cores", lambda: 16)
    monkeypatch.setattr(
        machine, "gpus", lambda: [machine.Gpu(str(i), free * giga, 80 * giga) for i, free in ((0, 80), (1, 20))]
    )
    monkeypatch.setattr(machine, "memory_needed", lambda experiment: 8 * giga)
    assert on_ray._room_here([SMALL]) == 4, "two on each, because all tasks ask for equal parts"
    monkeypatch.setattr(machine, "gpus", list)
    assert on_ray._room_here([SMALL]) is None


def test_the_memory_of_a_run_is_counted():
    more = dataclasses.replace(SMALL, steps=640, replay_capacity=640)
    grown = machine.memory_needed(more) - machine.memory_needed(SMALL)
    assert grown == pytest.approx(2 * 576 * 4 * (3 + 1 + 1 + 1 + 3), rel=0.3), "transitions of Pendulum-v1, twice"


def test_tasks_of_suites_are_named_once():
    assert len({*suites.MUJOCO, *suites.DMC, *suites.MAZES}) == 20
