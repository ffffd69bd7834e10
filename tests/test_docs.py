"""The documentation is true: every command of the README, the guides and the help texts runs, shortened only by
`shorter`, and so do the Python examples; functions, metrics, options and files that pages name exist."""

import importlib
import inspect
import json
import math
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import golden
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import finish, lsac, start

import lsac as package
from lsac.agents import AGENTS
from lsac.analyses import NAMES
from lsac.cli import COMMANDS, bench, training

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GUIDES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
AGENT_PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs/agents").glob("*.md"))}

SMALL = {
    "train": {"--hidden": "16", "--eval-episodes": "1", "--workers": "1", "--seeds": "2"},
    "train off-policy": {"--batch-size": "32", "--replay-capacity": "64", "--learning-starts": "16"},
    "train on-policy": {"--chunk": "64", "--minibatches": "2"},
    "train redq": {"--critic-updates": "2"},
    "train dipo": {"--denoising-steps": "5", "--pair-capacity": "2048"},
    "train lsac": {
        **{"--seeds": "1", "--chains": "2", "--synthetic-capacity": "256", "--refresh-every": "96"},
        **{"--generator.width": "16", "--generator.dim-t": "16", "--generator.blocks": "1"},
        **{"--generator.train-steps": "10", "--generator.sample-batch": "256"},
        **{"--width": "8", "--bins": "11"},
    },
    "sweep": {"--seeds": "1", "--steps": "4000"},
    "tune": {"--seeds": "2", "--steps": "4000", "--eval-every": "64", "--eval-episodes": "1"},
    "eval": {"--episodes": "1"},
    "doctor": {"--seconds": "0.1"},
    "bench": {"--preset": "quickstart", "--seeds": "1", "--rounds": "1", "--updates": "1"},
}
LONG = 8_000
"""Steps of a training that does not say how many."""


def shorter(command: list[str]) -> list[str]:
    """The same command with less to do, the only change that is made to what the documentation says.

    Steps shrink to 64 + √steps, which leaves a longer run longer; networks, buffers and the random phase of a training
    become small; there are two seeds, and one of LSAC, whose program takes long to compile; an evaluation is one
    episode, a video three frames, a measurement a tenth of a second or one update of a small agent.
    """
    name, args = command[0], list(command[1:])
    options = dict(SMALL.get(name, {}))
    if name == "train":
        config = AGENTS[args[0]].Config if args[:1] and args[0] in AGENTS else None
        options = options | SMALL[f"train {'on' if getattr(config, 'on_policy', False) else 'off'}-policy"]
    options = options | SMALL.get(" ".join(command[:2]), {})
    if name == "train" and "--steps" not in args:
        args += ["--steps", str(LONG)]
    if "--video" in args:
        options["--video-steps"] = "2"
    steps = args[args.index("--steps") + 1] if "--steps" in args else options.get("--steps")
    if steps is not None:
        options["--steps"] = str(64 + math.isqrt(int(steps)))
    for flag, value in options.items():
        if flag in args:
            args[args.index(flag) + 1] = value
        else:
            args += [flag, value]
    return [name, *args]


def commands_of(text: str) -> list[list[str]]:
    """The commands in some lines, split as a shell splits them."""
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


class Block(NamedTuple):
    language: str
    file: str | None
    """the name to save it under, where the page gives one"""
    text: str


FENCE = re.compile(
    r'^(?P<skip><!-- not run: [^\n]+ -->\n)?```(?P<language>\w+)(?: title="(?P<file>[^"]+)")?\n(?P<text>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)


def blocks(page: str, *languages: str) -> list[Block]:
    """The code of a page, without the blocks that it marks as not to be run."""
    found = [match for match in FENCE.finditer(page) if not match["skip"]]
    return [Block(m["language"], m["file"], m["text"]) for m in found if m["language"] in languages]


def make(target: str) -> list[list[str]]:
    """What `make target` would do."""
    command = ["make", "--no-print-directory", "-n", target]  # the tests themselves may run under make
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    return commands_of(shown.stdout)


def examples(*command: str) -> list[list[str]]:
    """The commands under `Examples:` in a help text."""
    result = lsac(*command, "--help")
    assert result.code == 0
    found = re.search(r"^Examples?:\n((?:  .*\n)+)", result.out, re.MULTILINE)
    assert found, f"lsac {' '.join(command)} --help has no examples"
    return commands_of(found[1])


done: set[tuple[str, ...]] = set()
"""Shortened commands that were run, with the folder they ran in if that matters."""


def run(words: list[str]) -> None:
    """Runs a command that the documentation shows; what is shown twice, once."""
    assert Path(words[0]).name == "lsac", words
    short = shorter(words[1:])
    key = (*short, "" if short[0] in ("doctor", "bench") else str(Path.cwd()))
    if key in done:
        return
    # Ray forks, which a process that computes with JAX should not do
    result = finish(start(*short)) if "ray" in short else lsac(*short)
    assert result.code == 0, f"{' '.join(words)}\n{result.out}\n{result.err}"
    assert "Traceback" not in result.err
    done.add(key)


@pytest.mark.parametrize("plan", sorted((ROOT / "experiments").glob("*.txt")), ids=lambda path: path.stem)
def test_every_line_of_a_plan_of_experiments_is_a_command(plan, monkeypatch):
    """As far as its options: no environment is created and nothing is trained."""
    checked = []
    monkeypatch.setattr("lsac.envs.sources.of_experiment", checked.append)
    monkeypatch.setattr("lsac.train.run.new_folder", lambda *args: None)
    monkeypatch.setattr(training, "_run", lambda *args, **kwargs: 0)
    lines = commands_of(plan.read_text())
    for name, *words in lines:
        result = lsac(*words, "--out", name)
        assert result.code == 0, f"{name}: {result.err}"
    assert len(checked) == len(lines) == len({name for name, *_ in lines})


def test_shorter_leaves_the_rest_alone():
    train = shorter(["train", "sac", "--env", "X", "--steps", "300000", "--out", "there"])
    assert train[:8] == ["train", "sac", "--env", "X", "--steps", "611", "--out", "there"]
    assert train[8:10] == ["--hidden", "16"]
    assert shorter(["train", "sac"])[2:4] == ["--steps", "153"]
    assert shorter(["resume", "there", "--steps", "1000000"]) == ["resume", "there", "--steps", "1064"]
    assert shorter(["eval", "there", "--episodes", "20"]) == ["eval", "there", "--episodes", "1"]
    assert shorter(["eval", "there", "--video", "x.mp4"])[-4:] == ["--episodes", "1", "--video-steps", "2"]
    assert shorter(["sweep", "--suite", "smoke"]) == ["sweep", "--suite", "smoke", "--seeds", "1", "--steps", "127"]
    assert shorter(["doctor"]) == ["doctor", "--seconds", "0.1"]
    assert shorter(["report", "a", "--out", "b"]) == ["report", "a", "--out", "b"]


def execute(words: list[str]) -> None:
    """Runs a command of a page; what would install something is checked as far as it can be without doing it."""
    if words[0] == "git":
        assert words == ["git", "clone", PROJECT["urls"]["Repository"]]
    elif words[0] == "cd":
        assert words[1] == PROJECT["name"]
    elif words[0] == "pip":
        assert words[:2] == ["pip", "install"]
        assert set(re.findall(r"\[(\w+)\]", words[2])) <= PROJECT["optional-dependencies"].keys()
    elif words[0] == "python":
        without = "import runpy, sys; sys.modules |= {'jax': None, 'lsac': None}; runpy.run_path(sys.argv[1])"
        shown = subprocess.run([sys.executable, "-c", without, words[1]], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith("["), "it prints an action"
    elif "=" in words[0]:
        name, _, value = words[0].partition("=")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, value)
            execute(words[1:])
    elif words == ["make", "test"]:
        assert [Path(step[0]).name for step in make("test")][-1] == "pytest"
    elif words[0] == "make":
        for step in make(words[1]):
            if Path(step[0]).name == "lsac":
                run(step)
    else:
        run(words)


executed: dict[tuple[str, Path], dict] = {}
"""Python that was run, with its folder, and the names it left."""


def python(code: str) -> dict:
    """Runs Python of a page, shortened like a command: fewer steps, fewer of them random. Returns its names."""
    code = code.replace('preset="quickstart"', 'preset="quickstart", learning_starts=16')
    for steps in re.findall(r"learn\(([\d_]+)", code):
        fewer = shorter(["train", "--steps", str(int(steps))])
        code = code.replace(f"learn({steps}", f"learn({fewer[fewer.index('--steps') + 1]}")
    if (code, Path.cwd()) not in executed:
        names: dict = {}
        exec(code, names)
        executed[code, Path.cwd()] = names
    return executed[code, Path.cwd()]


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """The one folder in which README and guides are followed: what two of them show is done once."""
    return tmp_path_factory.mktemp("desk")


@pytest.fixture
def at_desk(desk, monkeypatch):
    monkeypatch.chdir(desk)
    monkeypatch.syspath_prepend(desk)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(desk), os.environ.get("PYTHONPATH", "")]))
    return desk


def test_the_commands_of_the_readme(at_desk):
    shown = [words for block in blocks(README, "sh") for words in commands_of(block.text)]
    assert len(shown) >= 9
    for words in shown:
        execute(words)
    assert (at_desk / "runs/demo/curve.png").is_file(), "make demo leaves a learning curve"
    tables = [f"{name}.{end}" for name in ("table", "efficiency", "provenance") for end in ("csv", "md", "tex")]
    names = ("", "-diagnostics", "-SAC-stability")  # the last is of `lsac analyse`
    pictures = [f"Pendulum-v1{name}.{end}" for name in names for end in ("png", "svg")]
    written = {path.name for path in (at_desk / "report").iterdir()}
    assert written == {"index.html", "evaluations.csv", *pictures, *tables}


RARELY = ("gpu", "tasks", "analyses", "sweeps", "environment", "export")
"""Guides that take long; what analyses do is tested on a run of their own."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(name, marks=pytest.mark.slow) if name in RARELY else name for name in GUIDES if name != "agent"],
)
def test_the_code_of_the_guides(page, at_desk):
    """From top to bottom, as a reader would."""
    for block in blocks(GUIDES[page], "sh", "python"):
        if block.file:
            Path(block.file).write_text(block.text)
        elif block.language == "python":
            python(block.text)
        else:
            for words in commands_of(block.text):
                execute(words)
    if page == "environment":
        (resumed,) = json.loads(Path("runs/track/config.json").read_text())["resumes"]
        assert resumed["kind"] == "exact", "its get_state and set_state do what the page says"


@pytest.mark.parametrize("algorithm", AGENT_PAGES)
def test_the_commands_of_the_agents_pages_are_accepted(algorithm, tmp_path, monkeypatch):
    """At their full length, up to the point where a run would be compiled: options, environment, memory, folder.
    That each algorithm then trains is what the examples of its help show."""
    monkeypatch.chdir(tmp_path)
    reached = []
    monkeypatch.setattr(training, "_run", lambda experiment, *_, resume: reached.append(experiment.algorithm) or 0)
    shown = [words for block in blocks(AGENT_PAGES[algorithm], "sh") for words in commands_of(block.text)]
    assert shown, "every page says how its curve is made"
    for words in shown:
        result = lsac(*words[1:])
        assert result.code == 0, result.err
    assert reached == [algorithm] * len(shown)
    assert lsac("train", algorithm, "--env", "Pendulum-v1", "--no-such-option").code == 2


def test_the_example_of_an_agent_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks(GUIDES["agent"], "python"):
        Path(block.file).write_text(block.text)
    ddpg = importlib.import_module("ddpg")
    monkeypatch.setitem(sys.modules, "lsac.agents.ddpg", ddpg)  # where the page puts it
    presets = importlib.import_module("presets")
    config = presets.quickstart("Pendulum-v1").agent
    agent, replay = ddpg.make(config, golden.SPEC), golden.replay_of("td3")
    first = state = agent.init(jax.random.key(0))
    update = jax.jit(agent.update)
    losses = []
    for i in range(100):
        state, metrics = update(state, replay, jax.random.key(i))
        losses.append(float(metrics["critic_loss"]))
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    obs = jnp.array([0.5, -1.0, 2.0])
    action, memory = agent.act(agent.policy(state), agent.memory(), obs, jax.random.key(1), False)
    before, _ = agent.act(agent.policy(first), agent.memory(), obs, jax.random.key(1), False)
    noisy, _ = agent.act(agent.policy(state), agent.memory(), obs, jax.random.key(1), True)
    assert memory == agent.memory()
    assert len({float(x[0]) for x in (action, before, noisy)}) == 3, "it learns, and it explores"
    assert -1 <= float(noisy[0]) <= 1


def test_make_has_the_targets_that_are_spoken_of():
    for target in {*re.findall(r"`make (\w+)", README + (ROOT / "CONTRIBUTING.md").read_text()), "demo", "test"}:
        assert make(target), target


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder per algorithm, in which its examples are run: those of sac leave runs/cheetah for the other commands."""
    return {algorithm: tmp_path_factory.mktemp(algorithm) for algorithm in AGENTS}


OFTEN = ("lsac", "sac", "ppo")
"""Algorithms whose example is run with every change; the others' differ in the name only."""


@pytest.mark.parametrize(
    "algorithm", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in AGENTS]
)
def test_the_examples_of_train(algorithm, folders, monkeypatch):
    """All of them for one algorithm; of the others the first: the second is the same but for the name."""
    monkeypatch.chdir(folders[algorithm])
    shown = examples("train", algorithm)
    for words in (*examples("train"), *shown) if algorithm == "sac" else shown[:1]:
        run(words)
    names = {path.name for path in Path("runs").iterdir()}
    assert ("cheetah" in names) == (algorithm == "sac")
    assert any(re.fullmatch(rf"Pendulum-v1-{algorithm}-seed0-\d{{8}}-\d{{6}}", name) for name in names)


SLOW = ("bench", "sweep", "tune")
"""Commands whose examples take long."""


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in COMMANDS if name != "train"],
)
def test_the_examples_of_the_other_commands(command, folders, monkeypatch):
    monkeypatch.chdir(folders["sac"])
    for words in examples("train", "sac"):  # unless the test above has done so
        run(words)
    if not Path("runs/hopper").exists():
        shutil.copytree("runs/cheetah", "runs/hopper")  # which no example makes
    assert examples(command), "every command has examples"
    monkeypatch.setattr(bench, "VECTORS", ("sac",))  # what is timed if none is named: minutes for all
    for words in [*examples(command), *(examples("tune", "sac") if command == "tune" else [])]:
        run(words)  # fails where the command does


def test_the_python_of_the_readme(at_desk):
    (block,) = blocks(README, "python")
    names = python(block.text)
    assert Path("pendulum.safetensors").is_file()
    assert names["model"].num_timesteps > 64
    assert np.isfinite(names["reward"])
    names["env"].close()


FLAG = re.compile(r"(?<![\w-])--[a-z][a-z.-]*[a-z]")
OTHERS = {"--help", "--logdir"}
"""Options of every command, and of other programs."""


@pytest.fixture(scope="module")
def flags():
    commands = [["train", algorithm] for algorithm in AGENTS] + [[name] for name in COMMANDS if name != "train"]
    commands += [["analyse", name] for name in NAMES]
    commands += [["tune", "sac"]]
    return {flag for command in commands for flag in FLAG.findall(lsac(*command, "--help").out)}


def test_every_option_that_is_named_exists(flags):
    for name, text in {"README": README, **GUIDES, **AGENT_PAGES}.items():
        named = set(FLAG.findall(re.sub(r"```python.*?```", "", text, flags=re.DOTALL)))
        assert named - flags - OTHERS == set(), name
    assert set(FLAG.findall("`--no-such-thing` `--released.delay`")) - flags == {"--no-such-thing"}


def test_the_map_of_the_code_is_that_of_the_package():
    (shown,) = re.findall(r"## Map of the code\n+```\n(.*?)```", README, re.DOTALL)
    inside = shown.split("docs/")[0]
    folders = {path.parent.name + "/" for path in (ROOT / "src/lsac").glob("*/__init__.py")}
    assert set(re.findall(r"^  (\w+/)", inside, re.MULTILINE)) == folders
    paths = [*(f"src/lsac/{name}" for name in re.findall(r"\w+\.py", inside)), *re.findall(r"^(\w+/)", shown, re.M)]
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_file_that_a_page_links_to_exists():
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")):
        links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text())
        assert [link for link in links if not (page.parent / link).exists()] == [], page


@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md", "docs/index.md", "docs/api.md", "mkdocs.yml"])
def test_lists_of_algorithms_are_complete(page):
    text = (ROOT / page).read_text()
    missing = {name for name in AGENTS if not re.search(rf"(`|agents/){name}\b", text, re.IGNORECASE)}
    assert missing == set()


def test_the_readme_has_no_long_line_outside_of_tables():
    assert [line for line in README.splitlines() if len(line) > 120] == []


def test_one_address_of_the_repository():
    for name in ("README.md", "mkdocs.yml", "CITATION.cff", "docs/getting-started.md"):
        found = set(re.findall(r"https://github\.com/[\w-]+/lsac\b", (ROOT / name).read_text()))
        assert found == {PROJECT["urls"]["Repository"]}, name


# Functions and metrics

MODULES = [module.name for module in pkgutil.walk_packages(package.__path__, "lsac.") if "__main__" not in module.name]


def exists(name: str, algorithm: str) -> bool:
    """Whether an agent's page may call a function this: `f` of the agent's own module, `module.f`, `Class.field`, or
    a file."""
    if name.endswith(".py"):
        return any((ROOT / "src").rglob(name))
    own = AGENTS[algorithm]
    first, *rest = name.split(".")
    holders = [own] if not rest or (hasattr(own, first) and inspect.isclass(getattr(own, first))) else []
    if not holders:
        own_name = "agent" if first == algorithm else first  # LSAC's module is agents/lsac/agent.py
        holders = [importlib.import_module(m) for m in MODULES if m.rsplit(".", 1)[-1] in (first, own_name)]
        name = ".".join(rest)
    return any(_has(holder, name.split(".")) for holder in holders)


def _has(holder: object, path: list[str]) -> bool:
    for part in path:
        if not hasattr(holder, part):
            return False
        holder = getattr(holder, part)
    return True


def test_every_agent_has_a_page():
    assert AGENTS.keys() == AGENT_PAGES.keys()


@pytest.mark.parametrize("algorithm", AGENT_PAGES)
def test_every_function_of_an_equation_exists(algorithm):
    page = AGENT_PAGES[algorithm]
    (table,) = re.findall(r"^\| equation \| function \|\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    named = [name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.rsplit(" | ", 1)[1])]
    assert len(named) >= len(table.splitlines())
    assert [name for name in named if not exists(name, algorithm)] == []
    wrong = ("refill", f"{algorithm}.refill", "networks.actor_loss", "State.nothing", "nothing.py")
    assert [name for name in wrong if exists(name, algorithm)] == []


def test_every_metric_has_a_line():
    """Those of a run of each agent on Pendulum-v1, and those that the sources name."""
    listed = set(re.findall(r"^\| `([\w/]+)` \|", GUIDES["metrics"], re.MULTILINE))
    numbers = json.loads(golden.FILE.read_text())
    written = {name for run in numbers.values() for name in run["run"] if "/" in name}
    values = {name for run in numbers.values() for name in run["updates"] if name.startswith("value ")}
    judged = {name.replace("value ", "eval/") for name in values}
    assert {"eval/q", "eval/q_spread"} <= judged
    source = "".join(path.read_text() for path in (ROOT / "src/lsac").rglob("*.py"))
    literal = set(re.findall(r'"((?:train|eval|time|rollout)/\w+)"', source))
    assert written | judged | literal <= listed
    assert [name for name in listed if f'"{name}"' not in source and f'"{name.split("/")[-1]}"' not in source] == []
