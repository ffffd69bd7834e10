"""Words in messages: plurals, option names as Python writes them, and what names of Stable-Baselines3 mean here."""

import re

from lsac.options import flag

TRANSLATIONS: dict[str, str] = {
    "learning_rate": "here `actor_lr` and `critic_lr`",
    "buffer_size": "here `replay_capacity`",
    "ent_coef": "here `alpha_init`, which is tuned unless `alpha_lr` is 0 (ppo: `entropy_weight`)",
    "target_update_interval": "nothing to set, targets are averaged at every update with `tau`",
    "gradient_steps": "here `utd` is the number of updates per decision of the policy",
    "train_freq": "here `chunk` is the number of decisions between updates, `utd` the number of updates per decision",
    "policy_delay": "here `delay`",
    "target_policy_noise": "here `target_noise`",
    "target_noise_clip": "here `noise_clip`",
    "action_noise": "here `exploration_noise` (td3 and qsm)",
    "use_sde": "not available; the agents explore by their own policies",
    "use_sde_at_warmup": "not available; the first `learning_starts` steps are uniformly random",
    "sde_sample_freq": "not available",
    "replay_buffer_class": "not available; transitions are stored on the device, sized by `replay_capacity`",
    "replay_buffer_kwargs": "not available; the replay has only `replay_capacity`",
    "optimize_memory_usage": "nothing to set; `replay_capacity` determines the memory",
    "n_steps": "here `chunk` is the number of decisions in a rollout, over all `num_envs` simulators, and `n_step` "
    "that of an n-step return",
    "n_epochs": "here `epochs`",
    "clip_range": "here `clip_ratio`",
    "clip_range_vf": "here `value_clip`",
    "gae_lambda": "here `lam`",
    "target_kl": "here `max_kl` (trpo)",
    "vf_coef": "here `value_weight`",
    "max_grad_norm": "here `grad_norm`",
    "normalize_advantage": "nothing to set; advantages are always normalised",
    "n_critics": "here `critics`",
    "n_envs": "here `num_envs`",
    "policy": "leave it out: every agent has one kind of network, set by `hidden` and `activation`",
    "policy_kwargs": "here `hidden` and `activation`",
    "net_arch": "here `hidden`",
    "activation_fn": "here `activation`",
    "device": "JAX chooses it: set the environment variable JAX_PLATFORMS to cpu or cuda",
    "verbose": "nothing to set: Python shows messages with progress_bar=True, the command line always",
    "tensorboard_log": "nothing to set: TensorBoard files are in the folder of the run (out)",
    "tb_log_name": "nothing to set: TensorBoard files are in the folder of the run (out)",
    "stats_window_size": "nothing to set, training returns are means of 100 episodes",
    "monitor_wrapper": "nothing to set, episodes are always counted",
    "total_timesteps": "here `steps` on the command line, and the argument of learn in Python",
    "reset_num_timesteps": "a second learn continues the first, and learn(…, reset=True) starts again",
    "log_interval": "here `log_every`, in environment steps",
    "eval_freq": "here `eval_every`",
    "n_eval_episodes": "here `eval_episodes`",
    "save_freq": "here `checkpoint_every`",
}
"""Words of Stable-Baselines3 that are no options here, and what to do instead; names of options are in backquotes."""


def translation(name: str, as_flags: bool = False) -> str | None:
    """What to do here instead of an option of Stable-Baselines3; None if it is not known."""
    said = TRANSLATIONS.get(name)
    return said and re.sub(r"`(\w+)`", lambda match: flag(match[1]) if as_flags else match[1], said)


def in_python(text: str) -> str:
    """A message with its options as Python names them: --replay-capacity becomes replay_capacity."""
    return re.sub(r"--([a-z][\w.-]*\w)", lambda match: match[1].replace("-", "_"), text)


def counted(count: int, noun: str) -> str:
    """1 seed, 2 seeds."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
