"""The options of SAC+AE and DrQ."""

from dataclasses import dataclass
from typing import Literal

from lsac.nn.networks import Activation, ComputeDtype
from lsac.options import BatchSize, Count, CountOrZero, Decay, Layers, NotNegative, Positive, PositiveShare


@dataclass(frozen=True)
class Config:
    decoder: Literal["autoencoder", "none"] = "autoencoder"
    """autoencoder: the encoder also learns to reconstruct images; none: images are randomly shifted instead (DrQ)"""
    hidden: Layers = (1024, 1024)
    """width of each hidden layer, for actor and critics"""
    activation: Activation = "relu"
    """relu, gelu, elu, tanh or mish"""
    filters: Count = 32
    """channels of every convolution"""
    feature_dim: Count = 50
    """numbers into which an image is encoded, its code"""
    critics: Count = 2
    """number of critics, with one encoder; the target uses their minimum"""
    batch_size: BatchSize = 128
    """transitions per update"""
    actor_lr: Positive = 1e-3
    """Adam step size of the actor"""
    critic_lr: Positive = 1e-3
    """Adam step size of the critics and their encoder"""
    autoencoder_lr: Positive = 1e-3
    """Adam step size of encoder and decoder on the reconstruction, with Adam statistics of its own"""
    alpha_lr: NotNegative = 1e-4
    """Adam step size of log α; 0 keeps α at its initial value"""
    alpha_beta1: Decay = 0.5
    """β₁ of Adam for log α: decay rate of the running mean of gradients"""
    tau: PositiveShare = 0.01
    """Polyak weight of the new parameters in the target critics, whenever these are updated"""
    encoder_tau: PositiveShare = 0.05
    """the same for the encoder of the target critics"""
    delay: Count = 2
    """critic updates per update of the actor, α and the targets"""
    alpha_init: Positive = 0.1
    """initial entropy weight α"""
    target_entropy: float | None = None
    """entropy that α is tuned to reach; None means −dim(A)"""
    code_penalty: NotNegative = 1e-6
    """weight of half the squared norm of the code in the autoencoder's loss"""
    decoder_penalty: NotNegative = 1e-7
    """weight of half the squared norm of the decoder's parameters in the autoencoder's loss"""
    shift: CountOrZero = 4
    """images are shifted by up to this many pixels in each direction; only with --decoder none"""
    copies: Count = 2
    """shifted copies of every transition, over which TD target and loss are averaged; only with --decoder none"""
    compute_dtype: ComputeDtype = "auto"
    """dtype of convolutions and decoder in updates: auto, float32 or bfloat16; auto is bfloat16 on a GPU; parameters
    and acting are always float32"""

    @property
    def needs_gpu(self) -> bool:
        """Whether the convolutions of an update take seconds on a CPU."""
        return self.batch_size * self.filters**2 > 2**16
