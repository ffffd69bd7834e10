"""The options of Dreamer."""

from dataclasses import dataclass
from typing import Annotated, Any

from lsac.errors import InputError
from lsac.nn.networks import ComputeDtype
from lsac.options import AtLeast, BatchSize, Count, NotNegative, Positive, Share

LARGE = 20_000
"""Images per update times `depth`, from which on an update takes many seconds on a CPU."""


@dataclass(frozen=True)
class Config:
    deterministic_size: Count = 200
    """size of the deterministic part of a state"""
    stochastic_size: Count = 30
    """size of the stochastic part of a state"""
    model_units: Count = 200
    """width of the hidden layers of the recurrent state-space model"""
    depth: Count = 32
    """channels of the first convolution; all others are multiples of it"""
    units: Count = 400
    """width of the hidden layers of reward head (two), critic (three) and actor (four)"""
    batch_size: BatchSize = 50
    """windows of successive steps per update"""
    batch_length: Annotated[int, AtLeast(2)] = 50
    """steps in a window"""
    model_lr: Positive = 6e-4
    """Adam step size of the world model"""
    actor_lr: Positive = 8e-5
    """Adam step size of the actor"""
    critic_lr: Positive = 8e-5
    """Adam step size of the critic"""
    grad_norm: NotNegative = 100.0
    """norm to which the gradients of world model, actor and critic are clipped, each by itself; 0 means no clipping"""
    free_nats: NotNegative = 3.0
    """mean KL divergence of posterior and prior, in nats, below which it is not reduced further"""
    kl_scale: NotNegative = 1.0
    """weight of the KL divergence"""
    horizon: Annotated[int, AtLeast(2)] = 15
    """imagined steps"""
    lam: Share = 0.95
    """λ of the returns: 0 relies on the critic, 1 on the imagined rewards"""
    exploration_noise: NotNegative = 0.3
    """std of the noise on actions while exploring"""
    predict_discount: bool = False
    """learn where episodes terminate, for tasks in which they do; else every imagined step has the discount γ"""
    compute_dtype: ComputeDtype = "auto"
    """float32, bfloat16 or auto, which is bfloat16 on a GPU; parameters and acting are float32"""

    @property
    def needs_gpu(self) -> bool:
        """Whether the convolutions of an update take too long on a CPU."""
        return self.batch_size * self.batch_length * self.depth >= LARGE

    def check(self, experiment: Any) -> None:
        """Before the first update, every simulator must have filled a window."""
        needed = self.batch_length * experiment.num_envs
        kept = needed + (experiment.frame_stack - 1) * experiment.num_envs  # of the first image's frames, all but one
        if experiment.replay_capacity < kept:
            raise InputError(
                f"--replay-capacity {experiment.replay_capacity}: must be at least {kept}, "
                "--batch-length plus --frame-stack less 1, times --num-envs"
            )
        if experiment.learning_starts < needed * experiment.action_repeat:
            raise InputError(
                f"--learning-starts {experiment.learning_starts}: must be at least "
                f"{needed * experiment.action_repeat}, --batch-length times --num-envs times --action-repeat"
            )
