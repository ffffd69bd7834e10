"""Every option of every preset as a table, so that whoever changes a default sees which presets it changes.

A table has the names of the presets and, for every option, its value: one for all presets, or a list in the order of
the names. Options of a run are in `RUN`; an algorithm names those of them that its presets change.
"""

import dataclasses

import pytest

from lsac.agents import AGENTS
from lsac.presets import presets

RUN = {
    "steps": 1_000_000,
    "seeds": 1,
    "seed": 0,
    "num_envs": 1,
    "action_repeat": 1,
    "utd": 1.0,
    "chunk": 32,
    "gamma": 0.99,
    "time_limits_terminate": False,
    "learning_starts": 5_000,
    "normalise_observations": False,
    "scale_rewards": False,
    "replay_capacity": 1_000_000,
    "eval_every": 5_000,
    "eval_episodes": 10,
    "log_every": 1_000,
    "checkpoint_every": 50_000,
    "workers": 0,
    "env_timeout": 60.0,
    "env_args": (),
    "wrappers": (),
    "pixels": 0,
    "frame_stack": 1,
    "replay_on": "device",
    "steps_before": 0,
}

TABLES = {
    "lsac": (
        ["default", "strong", "paper", "released", "adam", "quickstart", "pixels", "pixels_quickstart"],
        {
            "hidden": [
                (256, 256, 256),
                (256, 256, 256),
                (256, 256, 256),
                (256, 256, 256),
                (256, 256, 256),
                (64, 64),
                (256, 256, 256),
                (64, 64),
            ],
            "activation": "gelu",
            "chains": [10, 10, 10, 10, 10, 5, 10, 3],
            "critics_per_chain": 2,
            "distributional": True,
            "sampler": ["asgld", "asgld", "asgld", "asgld", "adam", "asgld", "asgld", "asgld"],
            "critic_lr": [0.001, 0.0003, 0.001, 0.001, 0.0003, 0.001, 0.001, 0.001],
            "critic_lr_end": [0.0001, 0.00015, 0.0001, 0.0005, 0.0003, 0.0001, 0.0001, 0.0001],
            "anneal_from": [100_000, 0, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000],
            "anneal_to": 1_000_000,
            "inverse_temperature": [1e8, 1e8, 1e8, 1e16, 1e8, 1e8, 1e8, 1e8],
            "bias_factor": 1.0,
            "moment_eps": [1e-8, 1e-16, 1e-8, 1e-16, 1e-8, 1e-8, 1e-8, 1e-8],
            "clip": "grad_norm",
            "clip_at": [0.7, 10.0, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7],
            "exchange_every": 0,
            "ladder_ratio": 3.0,
            "batch_size": [256, 256, 256, 256, 256, 128, 256, 64],
            "synthetic": [True, False, True, False, True, True, False, False],
            "compute_dtype": ["auto", "auto", "float32", "float32", "auto", "auto", "auto", "auto"],
            "adaptive_share": [True, True, False, False, True, True, True, True],
            "synthetic_capacity": [1_000_000, 1_000_000, 1_000_000, 1_000_000, 1_000_000, 10_000, 1_000_000, 1_000_000],
            "refresh_every": [10_000, 10_000, 10_000, 10_000, 10_000, 1_000, 10_000, 10_000],
            "refresh_growth": [0.2, 0.2, 0.0, 0.2, 0.2, 0.2, 0.2, 0.2],
            "action_gradient": True,
            "action_lr": 0.0003,
            "actor_chain": ["uniform", "uniform", "uniform", "overflow", "uniform", "uniform", "uniform", "uniform"],
            "actor_lr": [0.0003, 0.0003, 0.0003, 0.0001, 0.0003, 0.001, 0.0003, 0.001],
            "actor_clip": [0.0, 0.0, 0.7, 0.0, 0.0, 0.0, 0.0, 0.0],
            "alpha_lr": [0.0003, 0.0003, 0.0003, 0.0003, 0.0003, 0.001, 0.0003, 0.001],
            "alpha_init": [0.2, 0.01, 0.2, 2.718281828, 0.2, 0.2, 0.2, 0.2],
            "target_entropy": None,
            "entropy_range": ["unit", "unit", "env", "env", "unit", "unit", "unit", "unit"],
            "tau": [0.005, 0.005, 0.005, 0.005, 0.005, 0.02, 0.005, 0.02],
            "bound_factor": 3.0,
            "std_eps": [0.1, 0.01, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
            "network": ["mlp", "sphere", "mlp", "mlp", "mlp", "mlp", "mlp", "mlp"],
            "actor_network": ["mlp", "sphere", "mlp", "mlp", "mlp", "mlp", "mlp", "mlp"],
            "width": 128,
            "blocks": 2,
            "embedding": False,
            "embedding_period": 250,
            "head": ["gaussian", "histogram", "gaussian", "gaussian", "gaussian", "gaussian", "gaussian", "gaussian"],
            "bins": 101,
            "value_bound": [0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            "std_init": [0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            "pessimism": 1.0,
            "endless_pessimism": [None, 0.25, None, None, None, None, None, None],
            "actor_pessimism": [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            "weight_prior": [0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            "temperature": 0.0,
            "actor_batches": [1, 4, 1, 1, 1, 1, 1, 1],
            "actors": "shared",
            "slow_evaluation": [False, True, False, False, False, False, False, False],
            "log_std_min": [-20.0, -10.0, -20.0, -20.0, -20.0, -20.0, -20.0, -20.0],
            "log_std_max": [0.5, 2.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
            "entropy_per_action": [-1.0, -0.5, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0],
            "normalise_observations": [False, True, False, False, False, False, False, False],
            "scale_rewards": [False, True, False, False, False, False, False, False],
            "generator.width": [512, 512, 1_024, 512, 512, 128, 512, 512],
            "generator.dim_t": [256, 256, 256, 256, 256, 32, 256, 256],
            "generator.blocks": [6, 6, 6, 6, 6, 3, 6, 6],
            "generator.train_steps": [4_000, 4_000, 100_000, 4_000, 4_000, 500, 4_000, 4_000],
            "generator.batch_size": [1_024, 1_024, 256, 1_024, 1_024, 256, 1_024, 1_024],
            "generator.lr": [0.001, 0.001, 0.0003, 0.001, 0.001, 0.001, 0.001, 0.001],
            "generator.betas": (0.9, 0.99),
            "generator.grad_clip": 1.0,
            "generator.ema": 0.995,
            "generator.ema_every": 10,
            "generator.warm_start": [True, True, False, True, True, True, True, True],
            "generator.model_terminals": True,
            "generator.match_terminals": False,
            "generator.model_change": False,
            "generator.normalize_reward": True,
            "generator.squash_beyond": 0.0,
            "generator.compute_dtype": ["auto", "auto", "float32", "auto", "auto", "auto", "auto", "auto"],
            "generator.sampler": ["dpm2m", "dpm2m", "heun", "dpm2m", "dpm2m", "dpm2m", "dpm2m", "dpm2m"],
            "generator.sampler_steps": [16, 16, 128, 16, 16, 12, 16, 16],
            "generator.sigma_min": 0.002,
            "generator.sigma_max": [10.0, 10.0, 80.0, 10.0, 10.0, 10.0, 10.0, 10.0],
            "generator.churn": 80.0,
            "generator.churn_low": 0.05,
            "generator.churn_high": 50.0,
            "generator.churn_noise": 1.003,
            "generator.sample_batch": [100_000, 100_000, 100_000, 100_000, 100_000, 10_000, 100_000, 100_000],
            "released.std_without_gradient": [False, False, False, True, False, False, False, False],
            "released.q_ascent": [False, False, False, True, False, False, False, False],
            "released.weight_norm": [0.0, 0.0, 0.0, 0.0001, 0.0, 0.0, 0.0, 0.0],
            "released.shared_averages": [False, False, False, True, False, False, False, False],
            "released.delay": [1, 1, 1, 2, 1, 1, 1, 1],
            "released.no_write_back": [False, False, False, True, False, False, False, False],
            "steps": [1_000_000, 1_000_000, 1_000_000, 1_000_000, 1_000_000, 6_000, 1_100_000, 2_000],
            "seeds": [1, 1, 1, 1, 1, 3, 1, 1],
            "num_envs": [1, 1, 1, 20, 1, 1, 1, 1],
            "utd": [1.0, 1.0, 1.0, 0.05, 1.0, 1.0, 0.5, 1.0],
            "chunk": [32, 32, 32, 40, 32, 8, 32, 8],
            "learning_starts": [5_000, 5_000, 10_000, 1_000, 5_000, 500, 4_000, 500],
            "eval_every": [5_000, 5_000, 5_000, 5_000, 5_000, 500, 10_000, 500],
            "log_every": [1_000, 1_000, 1_000, 1_000, 1_000, 250, 1_000, 250],
            "encoder.filters": [32, 32, 32, 32, 32, 32, 32, 8],
            "encoder.feature_dim": [50, 50, 50, 50, 50, 50, 50, 16],
            "encoder.lr": [0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.001],
            "encoder.shift": 4,
            "encoder.feature_rows": 50_000,
            "encoder.compute_dtype": "auto",
            "action_repeat": [1, 1, 1, 1, 1, 1, 2, 1],
            "pixels": [0, 0, 0, 0, 0, 0, 84, 24],
            "frame_stack": [1, 1, 1, 1, 1, 1, 3, 1],
            "encoder.batch_size": [512, 512, 512, 512, 512, 512, 512, 128],
        },
    ),
    "sac": (
        ["default", "official", "tuned", "paper", "quickstart"],
        {
            "hidden": [(256, 256), (256, 256), (256, 256), (256, 256, 256), (128, 128)],
            "activation": "relu",
            "critics": 2,
            "batch_size": [256, 256, 256, 256, 128],
            "actor_lr": [0.0003, 0.0003, 0.001, 0.0003, 0.001],
            "critic_lr": [0.0003, 0.0003, 0.001, 0.0003, 0.001],
            "alpha_lr": [0.0003, 0.0003, 0.001, 0.0, 0.001],
            "adam_beta2": [0.999, 0.999, 0.999, 0.99, 0.999],
            "tau": 0.005,
            "alpha_init": [1.0, 1.0, 1.0, 0.2, 1.0],
            "target_entropy": None,
            "steps": [1_000_000, 1_000_000, 1_000_000, 1_000_000, 8_000],
            "seeds": [1, 1, 1, 1, 3],
            "chunk": [32, 32, 32, 32, 8],
            "learning_starts": [5_000, 5_000, 5_000, 10_000, 500],
            "eval_every": [5_000, 5_000, 5_000, 5_000, 500],
            "log_every": [1_000, 1_000, 1_000, 1_000, 250],
        },
    ),
    "redq": (
        ["default", "official", "tuned", "paper", "quickstart"],
        {
            "hidden": [(256, 256), (256, 256), (256, 256), (256, 256, 256), (64, 64)],
            "activation": "relu",
            "critics": [10, 10, 10, 10, 5],
            "subset": 2,
            "critic_updates": [20, 20, 20, 20, 5],
            "batch_size": [256, 256, 256, 256, 128],
            "actor_lr": [0.0003, 0.0003, 0.001, 0.0003, 0.001],
            "critic_lr": [0.0003, 0.0003, 0.001, 0.0003, 0.001],
            "alpha_lr": [0.0003, 0.0003, 0.001, 0.0003, 0.001],
            "tau": 0.005,
            "alpha_init": [1.0, 1.0, 1.0, 0.2, 1.0],
            "target_entropy": None,
            "steps": [1_000_000, 1_000_000, 1_000_000, 1_000_000, 4_000],
            "seeds": [1, 1, 1, 1, 3],
            "chunk": [32, 32, 32, 32, 8],
            "learning_starts": [5_000, 5_000, 5_000, 10_000, 500],
            "eval_every": [5_000, 5_000, 5_000, 5_000, 500],
            "log_every": [1_000, 1_000, 1_000, 1_000, 250],
        },
    ),
    "qsm": (
        ["default", "official", "paper", "quickstart"],
        {
            "hidden": [(512, 512), (512, 512), (256, 256, 256), (64, 64)],
            "denoising_steps": 5,
            "score_scale": 50.0,
            "batch_size": [256, 256, 256, 128],
            "actor_lr": [0.0003, 0.0003, 0.0003, 0.001],
            "actor_decay": 2_000_000,
            "critic_lr": [0.0003, 0.0003, 0.0003, 0.001],
            "tau": [0.005, 0.005, 0.005, 0.02],
            "exploration_noise": 0.1,
            "target_noise": 0.1,
            "steps": [1_000_000, 1_000_000, 1_000_000, 8_000],
            "seeds": [1, 1, 1, 3],
            "chunk": [32, 32, 32, 8],
            "learning_starts": [10_000, 10_000, 10_000, 500],
            "eval_every": [5_000, 5_000, 5_000, 500],
            "log_every": [1_000, 1_000, 1_000, 250],
        },
    ),
    "td3": (
        ["default", "official", "paper", "quickstart"],
        {
            "hidden": [(256, 256), (256, 256), (256, 256, 256), (64, 64)],
            "activation": "relu",
            "batch_size": [256, 256, 256, 128],
            "actor_lr": [0.0003, 0.0003, 0.0003, 0.001],
            "critic_lr": [0.0003, 0.0003, 0.0003, 0.001],
            "adam_beta2": [0.999, 0.999, 0.99, 0.999],
            "tau": [0.005, 0.005, 0.005, 0.02],
            "delay": 2,
            "exploration_noise": 0.1,
            "target_noise": 0.2,
            "noise_clip": 0.5,
            "steps": [1_000_000, 1_000_000, 1_000_000, 8_000],
            "seeds": [1, 1, 1, 3],
            "chunk": [32, 32, 32, 8],
            "learning_starts": [25_000, 25_000, 10_000, 1_000],
            "eval_every": [5_000, 5_000, 5_000, 500],
            "log_every": [1_000, 1_000, 1_000, 250],
        },
    ),
    "dsact": (
        ["default", "official", "paper", "quickstart"],
        {
            "hidden": [(256, 256, 256), (256, 256, 256), (256, 256, 256), (64, 64)],
            "activation": "gelu",
            "loss": ["published", "released", "published", "published"],
            "batch_size": [256, 256, 256, 128],
            "actor_lr": [0.0001, 0.0001, 0.0003, 0.001],
            "critic_lr": [0.0001, 0.0001, 0.0003, 0.001],
            "alpha_lr": [0.0003, 0.0003, 0.0003, 0.001],
            "tau": [0.005, 0.005, 0.005, 0.02],
            "delay": 2,
            "alpha_init": [2.718281828459045, 2.718281828459045, 0.2, 2.718281828459045],
            "target_entropy": None,
            "entropy_range": ["env", "env", "env", "unit"],
            "bound_factor": 3.0,
            "std_eps": 0.1,
            "steps": [1_000_000, 1_000_000, 1_000_000, 8_000],
            "seeds": [1, 1, 1, 3],
            "num_envs": [1, 20, 1, 1],
            "utd": [1.0, 0.05, 1.0, 1.0],
            "chunk": [32, 40, 32, 8],
            "learning_starts": [10_000, 10_000, 10_000, 500],
            "eval_every": [5_000, 50_000, 5_000, 500],
            "log_every": [1_000, 1_000, 1_000, 250],
        },
    ),
    "ppo": (
        ["default", "official", "paper", "quickstart"],
        {
            "hidden": [(64, 64), (64, 64), (256, 256, 256), (64, 64)],
            "activation": "tanh",
            "epochs": [5, 80, 10, 10],
            "minibatches": [16, 1, 8, 16],
            "actor_lr": [0.001, 0.0003, 0.0007, 0.001],
            "critic_lr": [0.001, 0.001, 0.0007, 0.001],
            "adam_beta2": [0.999, 0.999, 0.99, 0.999],
            "anneal_updates": [None, 0, None, None],
            "lam": [0.95, 1.0, 0.95, 0.95],
            "clip_ratio": 0.2,
            "value_clip": [True, False, True, True],
            "value_weight": [0.25, 0.5, 0.25, 0.25],
            "entropy_weight": [0.0, 0.01, 0.01, 0.0],
            "grad_norm": [0.5, 0.0, 0.5, 0.5],
            "obs_clip": [10.0, 0.0, 10.0, 10.0],
            "mean_scale": 0.01,
            "log_std_init": [-0.5, -0.51, -0.5, -0.5],
            "steps": [1_000_000, 1_000_000, 1_000_000, 100_000],
            "seeds": [1, 1, 1, 3],
            "num_envs": [16, 4, 16, 4],
            "chunk": [2_048, 4_000, 2_048, 1_024],
            "gamma": [0.99, 0.99, 0.99, 0.95],
            "time_limits_terminate": [False, True, False, False],
            "learning_starts": 0,
            "eval_every": [5_000, 5_000, 5_000, 10_000],
        },
    ),
    "trpo": (
        ["default", "official", "paper", "quickstart"],
        {
            "hidden": [(64, 64), (64, 64), (256, 256, 256), (64, 64)],
            "activation": "tanh",
            "max_kl": 0.01,
            "damping": 0.1,
            "cg_steps": 10,
            "backtracks": 10,
            "backtrack": [0.8, 0.5, 0.8, 0.8],
            "kl_check": [True, False, True, True],
            "accept_ratio": 0.1,
            "epochs": [20, 10, 10, 10],
            "minibatches": [1, 15, 8, 32],
            "critic_lr": [0.001, 0.001, 0.0003, 0.001],
            "anneal_updates": [None, 0, None, None],
            "lam": [0.95, 0.97, 0.95, 0.95],
            "obs_clip": [10.0, 5.0, 10.0, 10.0],
            "log_std_init": [-0.5, 0.0, -0.5, -0.5],
            "mean_scale": [0.01, 0.1, 0.01, 0.01],
            "steps": [1_000_000, 1_000_000, 1_000_000, 100_000],
            "seeds": [1, 1, 1, 3],
            "num_envs": [16, 10, 16, 8],
            "chunk": [1_024, 15_000, 2_048, 2_048],
            "gamma": [0.99, 0.995, 0.99, 0.95],
            "time_limits_terminate": [False, True, False, False],
            "learning_starts": 0,
            "eval_every": [5_000, 5_000, 5_000, 10_000],
        },
    ),
    "dipo": (
        ["default", "paper", "official", "quickstart"],
        {
            "hidden": [(256, 256, 256), (256, 256, 256), (256, 256, 256), (64, 64)],
            "activation": "mish",
            "denoising_steps": [100, 100, 100, 10],
            "batch_size": [256, 256, 256, 128],
            "actor_lr": [0.0003, 0.0003, 0.0003, 0.001],
            "critic_lr": [0.0003, 0.0003, 0.0003, 0.001],
            "adam_beta2": [0.999, 0.99, 0.999, 0.999],
            "grad_norm": 2.0,
            "tau": [0.005, 0.005, 0.005, 0.02],
            "target_every": 1,
            "action_steps": [20, 20, 20, 10],
            "action_lr": [0.03, 0.03, 0.03, 0.06],
            "action_clip": 0.1,
            "pair_capacity": [1_000_000, 1_000_000, 1_000_000, 100_000],
            "no_write_back": [False, False, True, False],
            "steps": [1_000_000, 1_000_000, 1_000_000, 8_000],
            "seeds": [1, 1, 1, 3],
            "chunk": [32, 32, 32, 8],
            "time_limits_terminate": [False, False, True, False],
            "learning_starts": [10_000, 10_000, 10_000, 500],
            "eval_every": [5_000, 5_000, 10_000, 500],
            "log_every": [1_000, 1_000, 1_000, 250],
        },
    ),
    "drqv2": (
        ["default", "official", "paper", "quickstart"],
        {
            "hidden": [(1024, 1024), (1024, 1024), (1024, 1024), (128, 128)],
            "feature_dim": 50,
            "filters": [32, 32, 32, 8],
            "batch_size": [256, 256, 512, 64],
            "lr": [0.0001, 0.0001, 0.0001, 0.001],
            "tau": 0.01,
            "n_step": [3, 3, 3, 3],
            "noise_start": 1.0,
            "noise_end": 0.1,
            "noise_steps": [100_000, 100_000, 100_000, 1_000],
            "noise_clip": 0.3,
            "shift": 4,
            "compute_dtype": "auto",
            "steps": [1_100_000, 1_100_000, 1_100_000, 2_000],
            "seeds": [1, 1, 1, 3],
            "action_repeat": [2, 2, 2, 1],
            "pixels": [84, 84, 84, 24],
            "frame_stack": [3, 3, 3, 1],
            "utd": [0.5, 0.5, 0.5, 1.0],
            "chunk": [32, 32, 32, 8],
            "learning_starts": [4_000, 4_000, 4_000, 500],
            "eval_every": [10_000, 10_000, 10_000, 500],
            "log_every": [1_000, 1_000, 1_000, 250],
        },
    ),
    "sac_ae": (
        ["default", "official", "drq", "quickstart"],
        {
            "decoder": ["autoencoder", "autoencoder", "none", "autoencoder"],
            "hidden": [(1024, 1024), (1024, 1024), (1024, 1024), (64, 64)],
            "activation": "relu",
            "filters": [32, 32, 32, 8],
            "feature_dim": [50, 50, 50, 16],
            "critics": 2,
            "batch_size": [128, 128, 512, 64],
            "actor_lr": 0.001,
            "critic_lr": 0.001,
            "autoencoder_lr": 0.001,
            "alpha_lr": [0.0001, 0.0001, 0.001, 0.0001],
            "alpha_beta1": [0.5, 0.5, 0.9, 0.5],
            "tau": 0.01,
            "encoder_tau": [0.05, 0.05, 0.01, 0.05],
            "delay": 2,
            "alpha_init": [0.1, 0.1, 0.1, 0.05],
            "target_entropy": None,
            "code_penalty": 1e-06,
            "decoder_penalty": 1e-07,
            "shift": 4,
            "copies": 2,
            "compute_dtype": "auto",
            "steps": [1_000_000, 1_000_000, 1_000_000, 2_000],
            "seeds": [1, 1, 1, 3],
            "action_repeat": [2, 2, 2, 1],
            "pixels": [84, 84, 84, 24],
            "frame_stack": [3, 3, 3, 1],
            "chunk": [32, 32, 32, 8],
            "learning_starts": [2_000, 2_000, 2_000, 500],
            "replay_capacity": [1_000_000, 1_000_000, 100_000, 1_000_000],
            "eval_every": [10_000, 10_000, 10_000, 500],
            "log_every": [1_000, 1_000, 1_000, 250],
        },
    ),
    "dreamer": (
        ["default", "official", "quickstart"],
        {
            "deterministic_size": [200, 200, 32],
            "stochastic_size": [30, 30, 8],
            "model_units": [200, 200, 32],
            "depth": [32, 32, 4],
            "units": [400, 400, 64],
            "batch_size": [50, 50, 16],
            "batch_length": [50, 50, 8],
            "model_lr": [0.0006, 0.0006, 0.001],
            "actor_lr": [8e-05, 8e-05, 0.0003],
            "critic_lr": [8e-05, 8e-05, 0.0003],
            "grad_norm": 100.0,
            "free_nats": 3.0,
            "kl_scale": 1.0,
            "horizon": [15, 15, 5],
            "lam": 0.95,
            "exploration_noise": 0.3,
            "predict_discount": [False, False, True],
            "compute_dtype": "auto",
            "steps": [1_000_000, 1_000_000, 8_000],
            "action_repeat": [2, 2, 1],
            "pixels": [64, 64, 24],
            "utd": [0.2, 0.2, 0.25],
            "chunk": [500, 500, 16],
            "learning_starts": [5_000, 5_000, 500],
            "eval_every": [10_000, 10_000, 500],
            "replay_capacity": [1_000_000, 1_000_000, 8_000],
            "log_every": [1_000, 1_000, 500],
        },
    ),
}


def options_of(config, prefix=""):
    """All options, those of an agent's parts as `part.name`."""
    found = {}
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        inner = dataclasses.is_dataclass(value)
        found |= options_of(value, "" if field.name == "agent" else f"{name}.") if inner else {name: value}
    return found


def differences(algorithm, preset):
    """What the options of a preset and its table disagree on, in words."""
    names, table = TABLES[algorithm]
    column = names.index(preset)
    said = {name: x[column] if isinstance(x, list) else x for name, x in (RUN | table).items()}
    found = options_of(presets(algorithm)[preset]("X-v0"))
    del found["env"]
    where = f"{algorithm} --preset {preset}: "
    missing = [f"{where}{name} = {found[name]!r} is not in the table" for name in found if name not in said]
    unknown = [f"{where}{name} is in the table but no option" for name in said if name not in found]
    both = [name for name in found if name in said]
    other = [
        f"{where}{name} is {found[name]!r}, the table says {said[name]!r}" for name in both if found[name] != said[name]
    ]
    return missing + unknown + other


def test_every_preset_has_a_table():
    assert {name: list(presets(name)) for name in AGENTS} == {name: names for name, (names, _) in TABLES.items()}


@pytest.mark.parametrize(("algorithm", "preset"), [(a, name) for a, (names, _) in TABLES.items() for name in names])
def test_preset_is_what_its_table_says(algorithm, preset):
    assert differences(algorithm, preset) == []


@pytest.mark.parametrize(
    "env", ["Hopper-v4", "HalfCheetah-v5", "Walker2d-v2", "Ant-v4", "Humanoid-v4", "HumanoidStandup-v4"]
)
def test_redq_has_the_target_entropy_of_its_authors_for_every_version_of_a_task(env):
    entropies = {"Hopper-v4": -1.0, "HalfCheetah-v5": -3.0, "Walker2d-v2": -3.0, "Ant-v4": -4.0, "Humanoid-v4": -2.0}
    for name in ("default", "official"):
        assert presets("redq")[name](env).agent.target_entropy == entropies.get(env)


def test_a_list_in_a_table_has_a_value_for_every_preset():
    lengths = {
        (name, k): (len(x), len(names))
        for name, (names, t) in TABLES.items()
        for k, x in t.items()
        if isinstance(x, list)
    }
    assert not {where: found for where, found in lengths.items() if found[0] != found[1]}


@pytest.mark.parametrize(
    ("env", "gamma", "alpha"), [("Swimmer-v4", 0.999, 0.001), ("Hopper-v4", 0.99, 0.01), ("X-v0", 0.99, 0.01)]
)
def test_strong_looks_further_ahead_on_swimmer_alone(env, gamma, alpha):
    found = presets("lsac")["strong"](env)
    assert (found.gamma, found.agent.alpha_init) == (gamma, alpha)
