"""What the documentation says is done: every command of the README and of the help texts runs, shortened only by
`shorter`, and so does the Python example."""

import math
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from commands import lsac

from lsac.agents import AGENTS
from lsac.cli import COMMANDS, bench

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

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
    },
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
    episode, a measurement a tenth of a second or one update of a small agent.
    """
    name, args = command[0], list(command[1:])
    options = SMALL.get(name, {})
    if name == "train":
        config = AGENTS[args[0]].Config if args[:1] and args[0] in AGENTS else None
        options = options | SMALL[f"train {'on' if getattr(config, 'on_policy', False) else 'off'}-policy"]
    options = options | SMALL.get(" ".join(command[:2]), {})
    if name == "train" and "--steps" not in args:
        args += ["--steps", str(LONG)]
    if "--steps" in args:
        options["--steps"] = str(64 + math.isqrt(int(args[args.index("--steps") + 1])))
    for flag, value in options.items():
        if flag in args:
            args[args.index(flag) + 1] = value
        else:
            args += [flag, value]
    return [name, *args]


def commands_of(text: str) -> list[list[str]]:
    """The commands in some lines, split as a shell splits them."""
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


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
    key = (*short, "" if short[0] == "doctor" else str(Path.cwd()))
    if key in done:
        return
    result = lsac(*short)
    assert result.code == 0, f"{' '.join(words)}\n{result.out}\n{result.err}"
    assert "Traceback" not in result.err
    done.add(key)


def test_shorter_leaves_the_rest_alone():
    train = shorter(["train", "sac", "--env", "X", "--steps", "300000", "--out", "there"])
    assert train[:8] == ["train", "sac", "--env", "X", "--steps", "611", "--out", "there"]
    assert train[8:10] == ["--hidden", "16"]
    assert shorter(["train", "sac"])[2:4] == ["--steps", "153"]
    assert shorter(["resume", "there", "--steps", "1000000"]) == ["resume", "there", "--steps", "1064"]
    assert shorter(["eval", "there", "--episodes", "20"]) == ["eval", "there", "--episodes", "1"]
    assert shorter(["doctor"]) == ["doctor", "--seconds", "0.1"]
    assert shorter(["report", "a", "--out", "b"]) == ["report", "a", "--out", "b"]


def test_the_commands_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = [words for block in blocks("sh") for words in commands_of(block)]
    assert len(shown) >= 7
    for words in shown:
        if words[0] == "make":
            steps = make(words[1])
            if words[1] == "test":
                assert [Path(step[0]).name for step in steps][-1] == "pytest"
                continue
            for step in steps:
                if Path(step[0]).name == "lsac":
                    run(step)
        else:
            run(words)
    assert (tmp_path / "runs/demo/curve.png").is_file(), "make demo leaves a learning curve"
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        *("Pendulum-v1.png", "Pendulum-v1-diagnostics.png", "table.csv")
    }


def test_make_has_the_targets_that_are_spoken_of():
    for target in {*re.findall(r"`?make (\w+)", README), "check", "learning"}:
        assert make(target), target


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder per algorithm, in which its examples are run: those of sac leave runs/cheetah for the other commands."""
    return {algorithm: tmp_path_factory.mktemp(algorithm) for algorithm in AGENTS}


@pytest.mark.parametrize("algorithm", AGENTS)
def test_the_examples_of_train(algorithm, folders, monkeypatch):
    """All of them for one algorithm; of the others the first: the second is the same but for the name."""
    monkeypatch.chdir(folders[algorithm])
    shown = examples("train", algorithm)
    for words in (*examples("train"), *shown) if algorithm == "sac" else shown[:1]:
        run(words)
    names = {path.name for path in Path("runs").iterdir()}
    assert ("cheetah" in names) == (algorithm == "sac")
    assert any(re.fullmatch(rf"Pendulum-v1-{algorithm}-seed0-\d{{8}}-\d{{6}}", name) for name in names)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "train"])
def test_the_examples_of_the_other_commands(command, folders, monkeypatch):
    monkeypatch.chdir(folders["sac"])
    for words in examples("train", "sac"):  # unless the test above has done so
        run(words)
    if not Path("runs/hopper").exists():
        shutil.copytree("runs/cheetah", "runs/hopper")  # which no example makes
    assert examples(command), "every command has examples"
    monkeypatch.setattr(bench, "AGENTS", {"sac": AGENTS["sac"]})  # what is timed if none is named: minutes for all
    for words in examples(command):
        run(words)  # fails where the command does


def test_the_python_of_the_readme(tmp_path, monkeypatch):
    """Shortened like a command: the number of steps, and nothing else."""
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    steps = re.search(r"learn\(([\d_]+)", code)[1]
    fewer = shorter(["train", "--steps", str(int(steps))])
    names = {}
    exec(code.replace(steps, fewer[fewer.index("--steps") + 1]), names)
    assert Path("pendulum.safetensors").is_file()
    assert names["model"].num_timesteps > 64
    assert np.isfinite(names["reward"])
    names["env"].close()


def test_every_option_that_the_readme_names_exists():
    helped = "".join(lsac(*command, "--help").out for command in (["train", "sac"], ["resume"], ["eval"], ["report"]))
    helped += lsac("doctor", "--help").out
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) - {"--help"}
    assert named
    assert [flag for flag in named if not re.search(rf"{flag}\b", helped)] == []


def test_every_file_that_the_readme_names_exists():
    (map_of_code,) = re.findall(r"## Map of the code\n+```\n(.*?)```", README, re.DOTALL)
    paths = re.findall(r"(?:src/lsac/|(?<=\s))([a-z_/]+\.py)\b", map_of_code)
    assert len(paths) > 8
    assert [path for path in paths if not (ROOT / "src/lsac" / path).is_file()] == []
