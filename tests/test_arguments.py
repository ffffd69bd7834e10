"""What people type: numbers as they write them, words of other libraries, and what help says about them."""

import dataclasses
import json
import math
import random
import re
import types
import typing
from typing import Any

import numpy as np
import pytest
import small
from commands import TINY, lsac

from lsac import options
from lsac.agents import AGENTS
from lsac.errors import InputError
from lsac.options import typed
from lsac.presets import presets
from lsac.runs.experiment import Experiment, check, from_json, to_json
from lsac.runs.wording import TRANSLATIONS, counted, in_python, translation

# numbers


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (256.0, int, 256),
        (1e6, int, 1_000_000),
        (np.int64(3), int, 3),
        (np.float32(4.0), int, 4),
        (np.array(5), int, 5),
        (3, float, 3.0),
        (np.float32(0.5), float, 0.5),
        (64, tuple[int, ...], (64,)),
        (64.0, tuple[int, ...], (64,)),
        ([64, 32.0], tuple[int, ...], (64, 32)),
        (np.array([64, 32]), tuple[int, ...], (64, 32)),
        (np.bool_(True), bool, True),
        (-2.0, int | None, -2),
    ],
    ids=str,
)
def test_a_number_is_taken_as_it_is_meant(value, kind, found):
    converted = typed(value, kind, "here")
    assert (converted, type(converted)) == (found, type(found))
    assert [type(x) for x in np.atleast_1d(converted).tolist()] == [type(x) for x in np.atleast_1d(found).tolist()]


@pytest.mark.parametrize(
    ("value", "kind", "sentence"),
    [
        (1.5, int, "here 1.5: must be a whole number"),
        (math.nan, int, "here nan: must be a whole number"),
        (math.inf, int, "here inf: must be a whole number"),
        (1e300, int, "here: 1000000000.* is too large"),
        (True, int, "here: True is not of type int"),
        ("64", tuple[int, ...], "here: '64' is not of type tuple"),
        (0.9, tuple[float, float], "here: 0.9 is not of type tuple"),
        (np.zeros((2, 2)), tuple[int, ...], "here: a list is not of type int"),
    ],
    ids=str,
)
def test_what_is_no_such_number_is_rejected_in_one_sentence(value, kind, sentence):
    with pytest.raises(InputError, match=f"^{sentence}"):
        typed(value, kind, "here")


def test_the_command_line_takes_whole_numbers_as_people_write_them(tmp_path):
    sizes = ("--replay-capacity", "6.4e1", "--steps", "1e2", "--hidden", "1.6e1")
    result = lsac("train", "sac", "--env", "Pendulum-v1", *TINY, *sizes, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    found = json.loads((tmp_path / "run" / "config.json").read_text())["experiment"]
    assert (found["steps"], found["replay_capacity"], found["agent"]["hidden"]) == (100, 64, [16])
    assert {type(found["steps"]), type(found["replay_capacity"]), type(found["agent"]["hidden"][0])} == {int}


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("train sac --env Pendulum-v1 --steps 1.5", "--steps 1.5: must be a whole number"),
        ("train sac --env Pendulum-v1 --steps inf", "--steps inf: must be a whole number"),
        ("train lsac --env Pendulum-v1 --generator.width 0.5", "--generator.width 0.5: must be a whole number"),
        ("train sac --env Pendulum-v1 --hidden 64 0.5", "--hidden 0.5: must be a whole number"),
        ("sweep --suite smoke --jobs 1.5", "--jobs 1.5: must be a whole number"),
        ("tune sac --env Pendulum-v1 --jobs 1.5", "--jobs 1.5: must be a whole number"),
        ("analyse actions nowhere --dims 0 1.5", "--dims 1.5: must be a whole number"),
        ("eval nowhere --episodes 2.5", "--episodes 2.5: must be a whole number"),
        ("resume nowhere --steps 2.5", "--steps 2.5: must be a whole number"),
        ("bench sac --seeds 2.5", "--seeds 2.5: must be a whole number"),
    ],
)
def test_a_number_that_is_not_whole_is_rejected_by_its_option(command, sentence):
    result = lsac(*command.split())
    assert (result.code, result.sentence) == (2, f"lsac: {sentence}")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("train sac --env Pendulum-v1 --stepz 5", "--stepz: no such option; did you mean --steps? (see lsac train sac"),
        ("train sac --stepz=5", "--stepz: no such option; did you mean --steps? (see lsac train sac --help)"),
        ("train sac --no-scale-reward", "--no-scale-reward: no such option; did you mean --no-scale-rewards? (see"),
        ("train sac --wraper a:b", "--wraper: no such option; did you mean --wrapper? (see lsac train sac --help)"),
        ("train lsac --generator.wdth 4", "--generator.wdth: no such option; did you mean --generator.width? (see"),
        ("train sac --qqqq", "--qqqq: no such option (see lsac train sac --help)"),
        ("train sac -x", "-x: no such option (see lsac train sac --help)"),
        ("train sac --steps_before 5", "--steps_before: no such option"),
        ("train sac --env Pendulum-v1 foo", "foo: belongs to no option (see lsac train sac --help)"),
        ("train sac --steps ten", "--steps ten: must be a whole number"),
        ("train sac --gamma ten", "--gamma ten: must be a number"),
        ("train sac --hidden 64 ten", "--hidden ten: must be a whole number"),
        ("train sac --steps", "--steps: needs a value (see lsac train sac --help)"),
        ("train lsac --generator.betas 0.9", "--generator.betas: needs 2 values (see lsac train lsac --help)"),
        ("train lsac --generator.betas 0.9 e", "--generator.betas e: must be a number"),
        ("train lsac --sampler foo", "--sampler foo: must be one of asgld, sgld, underdamped, adam"),
        ("sweep --engine foo", "--engine foo: must be one of local, ray"),
        ("bench --algoritms", "--algoritms: no such option; did you mean --algorithms? (see lsac bench --help)"),
        ("eval nowhere --video-steps ten", "--video-steps ten: must be a whole number"),
        ("eval a b", "b: belongs to no option (see lsac eval --help)"),
        ("eval", "lsac eval: needs RUN (see lsac eval --help)"),
        ("report x", "lsac report: needs --out (see lsac report --help)"),
        ("report --out", "--out: needs a value (see lsac report --help)"),
        ("report --labels x y", "lsac report: needs --out (see lsac report --help)"),
        ("report x --out y --no-smoth", "--no-smoth: no such option; did you mean --smooth? (see lsac report --help)"),
        ("report x --ouut y", "--ouut: no such option; did you mean --out? (see lsac report --help)"),
        ("analyse actions nowhere --dims 0 x", "--dims x: must be a whole number"),
    ],
)
def test_what_cannot_be_parsed_is_rejected_in_one_sentence(command, sentence):
    result = lsac(*command.split())
    assert result.code == 2
    assert result.err == f"{result.sentence}\n", "nothing else is printed"
    assert result.sentence.startswith(f"lsac: {sentence}")


def test_an_option_may_be_none_and_be_written_with_underscores(tmp_path):
    sizes = ("--replay_capacity", "64", "--steps", "64", "--no-scale_rewards")
    result = lsac(
        "train", "sac", "--env", "Pendulum-v1", *TINY, *sizes, "--wandb-project", "None", "--out", tmp_path / "run"
    )
    assert result.code == 0, result.err


REJECTED = """
--generator.ema-every 0|--generator.width 0|--generator.dim-t 0|--generator.sample-batch 0|--generator.sampler-steps 1
--generator.sampler-steps 0|--generator.sigma-max -1|--inverse-temperature -1|--inverse-temperature 0|--chains 0
--generator.batch-size 0|--generator.lr -1|--generator.sigma-min 0|--clip-at -1|--clip-at 0|--bias-factor -1|--tau 0
--generator.ema 2|--generator.betas 2 2|--generator.grad-clip 0|--generator.blocks 0|--anneal-from 100 --anneal-to 50
--exchange-every -3|--ladder-ratio 0|--bound-factor -1|--released.delay 0|--action-lr -1|--synthetic-capacity 0
--generator.train-steps 25
"""


@pytest.mark.parametrize("words", [words for line in REJECTED.split("\n") for words in line.split("|") if words])
def test_a_value_that_cannot_work_is_rejected_before_anything_is_compiled(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = lsac("train", "lsac", "--env", "Pendulum-v1", *words.split())
    assert result.code == 2
    assert result.sentence.startswith(f"lsac: {words.split()[0]} ")
    assert list(tmp_path.iterdir()) == []


# every accepted configuration can be read again


@pytest.mark.parametrize("env", ["Half Cheetah", "a" * 201, "x\n-v0", "mod:A?"])
def test_an_id_that_could_not_be_read_again_is_rejected(env):
    with pytest.raises(InputError, match=r"^--env .*: is not the id of an environment$"):
        check(Experiment(small.config("sac"), env))


def random_value(rng: random.Random, hint: Any, markers: tuple[Any, ...] = ()) -> Any:
    """A value of an option: often inside its limits, sometimes at or beyond them, sometimes of another type."""
    if hasattr(hint, "__metadata__"):
        return random_value(rng, hint.__origin__, (*markers, *hint.__metadata__))
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    for marker in markers:
        if isinstance(marker, options.OneOf):
            return rng.choice(marker.names)
    if origin is typing.Literal:
        return rng.choice(inner)
    if origin in (typing.Union, types.UnionType):
        return random_value(rng, rng.choice(inner), markers)
    if hint is type(None):
        return None
    if origin is tuple:
        items = inner[:1] * rng.randint(1, 3) if inner[1:] == (...,) else inner
        values = [random_value(rng, item) for item in items]
        return rng.choice([tuple(values), values])
    if hint is bool:
        return rng.choice([True, False, np.bool_(True)])
    if hint is int:
        count = rng.choice([0, 1, 2, 8, 64, rng.randint(1, 1000), rng.randint(1, 2**31 - 1)])
        return rng.choice([count, count, count, np.int64(count), float(count), np.float32(count % 4096)])
    if hint is float:
        number = rng.choice([0.0, 0.5, 1.0, 2.0, 1e-30, rng.uniform(0, 1), rng.uniform(1, 9), 10 ** rng.uniform(-5, 5)])
        return rng.choice([number, number, np.float32(number), np.float64(number), int(number)])
    if hint is str:  # arguments and wrappers of an environment
        return rng.choice(
            ["g=9.81", "name=a b", 'text="1"', "list=[1, null]", "none=", "gymnasium.wrappers:ClipAction", ""]
        )
    raise AssertionError(f"no random value of {hint}")


def random_changes(rng: random.Random, config: Any, share: float) -> dict[str, Any]:
    """Random values for a share of the options of a dataclass, those of nested ones included."""
    changes: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            changes[name] = dataclasses.replace(value, **random_changes(rng, value, share))
        elif typing.get_origin(hint) is not typing.ClassVar and rng.random() < share and name != "env":
            changes[name] = random_value(rng, hint)
    return changes


def converted(config: Any) -> Any:
    """The dataclass with every value converted as a person's would be."""
    hints = typing.get_type_hints(type(config))
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    found = {k: converted(v) if dataclasses.is_dataclass(v) else typed(v, hints[k], k) for k, v in values.items()}
    return type(config)(**found)


def accepted(experiment: Experiment) -> bool:
    try:
        check(experiment)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("algorithm", AGENTS)
def test_every_accepted_configuration_can_be_read_again(algorithm):
    rng, tried = random.Random(algorithm), {"as given": 0, "converted": 0}
    base = next(iter(presets(algorithm).values()))("Pendulum-v1")
    for i in range(300):
        given = dataclasses.replace(base, **random_changes(rng, base, 0.02 + 0.1 * (i % 2)))
        for kind, experiment in (("as given", given), ("converted", converted(given))):
            if accepted(experiment):
                text = json.dumps(to_json(experiment))
                assert from_json(json.loads(text), "here") == experiment
                tried[kind] += experiment != base
    assert min(tried.values()) > 10, tried
    assert tried["as given"] < tried["converted"], "what is of another type is converted, or it is rejected"


# words of Stable-Baselines3


def names_of(config: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}


OPTIONS = names_of(Experiment).union(*(names_of(module.Config) for module in AGENTS.values()))


def test_a_translation_names_options_that_exist_and_is_needed():
    named = {name for said in TRANSLATIONS.values() for name in re.findall(r"`(\w+)`", said)}
    assert named - OPTIONS == set()
    assert TRANSLATIONS.keys() & OPTIONS == set()
    assert {"actor_lr", "replay_capacity", "hidden"} <= named
    plain = {word for said in TRANSLATIONS.values() for word in re.findall(r"(?<!`)\b[a-z]+_[a-z_]+\b(?!`)", said)}
    assert plain <= {"progress_bar"}, "names of options stand in backquotes"


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("--learning-rate", "here --actor-lr and --critic-lr"),
        ("--buffer_size=100", "here --replay-capacity"),
        ("--verbose", "nothing to set"),
    ],
)
def test_a_word_of_stable_baselines3_is_answered_with_ours(word, instead):
    result = lsac("train", "sac", "--env", "Pendulum-v1", word, "1e-3")
    assert result.code == 2
    assert result.sentence.startswith(f"lsac: {word.partition('=')[0]}: no such option; {instead}")


def test_python_and_the_command_line_name_options_as_one_types_them():
    assert translation("learning_rate") == "here actor_lr and critic_lr"
    assert translation("learning_rate", as_flags=True) == "here --actor-lr and --critic-lr"
    assert translation("no_such") is None
    with pytest.raises(InputError) as rejected:
        check(Experiment(small.config("sac"), "Pendulum-v1", chunk=0))
    assert in_python(str(rejected.value)) == "chunk 0: must be at least 1"
    assert in_python("--chunk 8: must be a multiple of --num-envs 3") == "chunk 8: must be a multiple of num_envs 3"
    assert in_python("--generator.train-steps 5: is -- no -5") == "generator.train_steps 5: is -- no -5"


def test_one_is_not_many():
    assert [counted(n, "seed") for n in (0, 1, 2, 1000)] == ["0 seeds", "1 seed", "2 seeds", "1,000 seeds"]


# help


@pytest.fixture(scope="module")
def helps():
    """The help of every algorithm, as one line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        return {name: re.sub(r"[ │\n]+", " ", lsac("train", name, "--help").out) for name in AGENTS}


def switches(config: Any, prefix: str = "--") -> set[str]:
    """The options of a dataclass that are on or off, without those that are named by what they turn off."""
    found = set()
    for field in dataclasses.fields(config):
        name, value = field.name.replace("_", "-"), getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= switches(value, f"--{name}." if field.name != "agent" else "--")
        elif isinstance(value, bool) and not name.startswith("no-"):
            found.add(prefix + name)
    return found


@pytest.mark.parametrize("algorithm", AGENTS)
def test_the_help_of_a_switch_names_both_of_its_sides(algorithm, helps):
    """What `--no-synthetic` does cannot be read from "whether half of every batch is generated (default: True)"."""
    found = switches(presets(algorithm)["default"]("Pendulum-v1"))
    assert "--normalise-observations" in found
    for switch in found:
        *start, last = switch.removeprefix("--").split(".")
        off = "--" + ".".join([*start, f"no-{last}"])
        assert f"{switch}, {off} " in helps[algorithm]
    assert "no-no-" not in helps[algorithm]


@pytest.mark.parametrize("algorithm", AGENTS)
def test_the_help_says_what_each_preset_is(algorithm, helps):
    for name, made in presets(algorithm).items():
        assert f" {name} {made.__doc__.splitlines()[0]} " in helps[algorithm]
