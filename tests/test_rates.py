"""How many workers a run takes: measured, remembered, and never in the way of a run."""

import json

import pytest
from small import config

from lsac.envs import rates
from lsac.envs.rates import Rates
from lsac.envs.recipes import Recipe
from lsac.envs.sources import given
from lsac.runs import main_memory
from lsac.runs.experiment import Experiment
from lsac.train.run import choose_workers

PENDULUM = given("Pendulum-v1").training.recipe


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LSAC_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("cores", "together", "workers"),
    [
        (1, 100.0, 1),
        (2, 105.0, 1),  # two are no faster than one: the second core is not ours
        (2, 160.0, 2),
        (2, 230.0, 2),  # never more than there are cores
        (64, 195.0, 2),  # a container that sees 64 cores and may use two
        (16, 1290.0, 13),
    ],
)
def test_workers_are_as_many_as_really_run_at_once(cores, together, workers):
    assert Rates(cores, 100.0, together).workers == workers


def test_a_measurement_is_remembered_for_its_environment_alone():
    assert rates.known(PENDULUM) is None
    measured = rates.measure(PENDULUM, 0.05)
    assert measured is not None
    assert measured.alone > 100
    assert rates.known(PENDULUM) == measured
    for other in (given("Hopper-v5"), given("Pendulum-v1", env_kwargs={"g": 1.0})):
        assert rates.known(other.training.recipe) is None


def test_a_damaged_memory_is_measured_again():
    rates.cache_folder().mkdir()
    (rates.cache_folder() / "simulation.json").write_text('{"Pendulum')
    assert rates.known(PENDULUM) is None
    (rates.cache_folder() / "simulation.json").write_text(json.dumps({rates._key(PENDULUM): [2, "fast"]}))
    assert rates.known(PENDULUM) is None
    assert rates.measure(PENDULUM, 0.02) == rates.known(PENDULUM)


@pytest.mark.parametrize("entry_point", ["faulty_envs:NoSuchClass", "faulty_envs:HangsAtOnce"])
def test_a_simulator_that_fails_yields_no_rate_and_no_delay(entry_point, monkeypatch):
    monkeypatch.setattr(rates, "START_UP", 4.0)
    assert rates.measure(Recipe(factory=entry_point), 0.1) is None
    assert not (rates.cache_folder() / "simulation.json").exists()


def experiment(**changes) -> Experiment:
    return Experiment(config("sac"), "Pendulum-v1", **changes)


def test_a_run_takes_what_was_measured(monkeypatch):
    said = []
    monkeypatch.setattr(rates, "cores", lambda: 8)
    monkeypatch.setattr(rates, "measure", lambda spec, seconds: Rates(8, 100.0, 290.0))
    assert choose_workers(given("Pendulum-v1").training, experiment(seeds=3), said.append) == 3
    assert said == ["simulation: 100 steps/s in one process, 290 in 8: 3 workers"]


def test_nothing_is_measured_where_there_is_no_choice(monkeypatch):
    monkeypatch.setattr(rates, "cores", lambda: 8)
    monkeypatch.setattr(rates, "measure", None)  # not called
    source = given("Pendulum-v1").training
    assert choose_workers(source, experiment(seeds=1), print) == 1  # one simulator
    assert choose_workers(source, experiment(seeds=3, workers=5), print) == 5  # asked for
    monkeypatch.setattr(rates, "cores", lambda: 1)
    assert choose_workers(source, experiment(seeds=3), print) == 1


def test_what_cannot_be_measured_gets_a_worker_per_core(monkeypatch):
    said = []
    monkeypatch.setattr(rates, "cores", lambda: 8)
    monkeypatch.setattr(rates, "measure", lambda spec, seconds: None)
    assert choose_workers(given("Pendulum-v1").training, experiment(seeds=3), said.append) == 8
    assert said == ["simulation: could not be measured, one worker per core"]


def test_memory_of_a_container_is_its_limit_less_what_cannot_give_way(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 250\n")
    assert main_memory.container_allows(tmp_path) == 550
    (tmp_path / "memory.max").write_text("max\n")
    assert main_memory.container_allows(tmp_path) is None
