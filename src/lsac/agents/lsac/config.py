"""The options of LSAC."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import tyro

from lsac.agents.lsac import synthesis
from lsac.agents.sac import EntropyRange
from lsac.errors import InputError
from lsac.nn.networks import Activation, ComputeDtype
from lsac.options import (
    AddedLater,
    AtLeast,
    BatchSize,
    Between,
    BufferSize,
    Count,
    CountOrZero,
    Layers,
    MoreThan,
    NotNegative,
    Positive,
    PositiveShare,
    RunOptions,
    Share,
)


@dataclass(frozen=True)
class Released:
    """Behaviour of the published code that its paper does not describe. All off by default."""

    std_without_gradient: bool = False
    """the std head gets no gradient except that of the weight norm"""
    q_ascent: bool = False
    """every critic step also increases the summed Q of the refined batch"""
    weight_norm: NotNegative = 0.0
    """weight of a penalty in the critic loss: the sum of the norms of a critic's parameter arrays"""
    shared_averages: bool = False
    """use one running mean of σ for all chains, and its square as the scale of the loss"""
    delay: Count = 1
    """critic updates per update of the actor, α and all target networks"""
    no_write_back: tyro.conf.FlagCreatePairsOff[bool] = False
    """use refined actions once and do not write them back"""


@dataclass(frozen=True)
class EncoderOptions:
    """How images become features. Without images, nothing depends on it."""

    filters: Count = 32
    """filters of each of the four convolutions"""
    feature_dim: Annotated[int, AtLeast(2)] = 50
    """number of features of an image, which the agent sees beside the rest of the observation"""
    lr: Positive = 1e-4
    """Adam step size of the encoder"""
    batch_size: BatchSize = 512
    """transitions whose images are encoded for an update; the chains draw their batches from them"""
    shift: CountOrZero = 4
    """images are moved by up to this many pixels, at random"""
    feature_rows: Count = 50_000
    """transitions whose images are encoded for a fit of the generator"""
    compute_dtype: ComputeDtype = "auto"
    """dtype of the convolutions in updates: auto is bfloat16 on a GPU and float32 on a CPU"""


@dataclass(frozen=True)
class Config:
    langevin: ClassVar[bool] = True
    """`lsac bench` also times the Langevin noise"""
    hidden: Layers = (256, 256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: Activation = "gelu"
    """relu, gelu, elu, tanh or mish"""
    network: Annotated[Literal["mlp", "sphere", "batch_norm"], AddedLater(before="mlp")] = "mlp"
    """network of the critics: a multilayer perceptron, a residual network whose features and weight rows are unit
    vectors, or one with batch normalisation and such rows"""
    actor_network: Annotated[Literal["mlp", "sphere"], AddedLater(before="mlp")] = "mlp"
    """network of the actor, as for the critics"""
    width: Annotated[Count, AddedLater(before=128)] = 128
    """width of the features of a residual network"""
    blocks: Annotated[Count, AddedLater(before=2)] = 2
    """number of blocks of a critic that is a residual network"""
    embedding: Annotated[bool, AddedLater(before=False)] = False
    """whether actor and critics also see a learned embedding of state and action, which all chains share (SALE)"""
    embedding_period: Annotated[Count, AddedLater(before=250)] = 250
    """updates between changes of the embedding that actor and critics see; target networks are copied then"""
    chains: Count = 10
    """number of parallel Langevin chains"""
    critics_per_chain: Count = 2
    """number of critics per chain; TD targets, actor and refinement use their minimum, unless --pessimism says less"""
    distributional: bool = True
    """whether critics model the return distribution; if not, they fit its mean with a squared error"""
    head: Annotated[Literal["gaussian", "histogram"], AddedLater(before="gaussian")] = "gaussian"
    """distribution of the return that critics predict: a Gaussian, or a histogram over ± value_bound"""
    bins: Annotated[int, AtLeast(2), AddedLater(before=101)] = 101
    """number of bins of a histogram"""
    value_bound: Annotated[NotNegative, AddedLater(before=0.0)] = 0.0
    """TD targets are clipped to ± this; 0 means no clipping"""
    std_init: Annotated[NotNegative, AddedLater(before=0.0)] = 0.0
    """initial σ of a Gaussian critic, and of its running means; 0 means that of the network, about 0.7"""
    pessimism: Annotated[Share, AddedLater(before=1.0)] = 1.0
    """κ: TD targets use κ times the minimum over a chain's critics plus 1 − κ times their mean"""
    endless_pessimism: Annotated[float | None, Between(0, 1), AddedLater(before=None)] = None
    """the same as long as no episode has terminated; None means as --pessimism"""
    actor_pessimism: Annotated[Share, AddedLater(before=1.0)] = 1.0
    """the same for the actor and for the refinement of actions"""
    weight_prior: Annotated[NotNegative, AddedLater(before=0.0)] = 0.0
    """precision of a Gaussian prior on the critics' parameters that are not on spheres; like any prior, it weighs less
    the more transitions there are"""
    sampler: Literal["asgld", "sgld", "underdamped", "adam"] = "asgld"
    """update rule of the critics: adaptive, plain or underdamped Langevin dynamics, or Adam without noise"""
    critic_lr: Positive = 1e-3
    """step size η_Q of the sampler"""
    critic_lr_end: NotNegative = 1e-4
    """step size of the sampler after annealing"""
    anneal_from: CountOrZero = 100_000
    """update at which annealing starts"""
    anneal_to: CountOrZero = 1_000_000
    """update at which annealing ends"""
    inverse_temperature: Positive = 1e8
    """β_Q: the noise of a step is √(2 η_Q / β_Q)"""
    temperature: Annotated[NotNegative, AddedLater(before=0.0)] = 0.0
    """T: β_Q = transitions in the replay / (ω T), where ω is the scale of the loss; T = 1 is the temperature of the
    posterior, from which sgld samples (the drift of asgld is larger than the gradient, so its chains are colder); 0
    means a constant --inverse-temperature"""
    bias_factor: NotNegative = 1.0
    """weight a of the adaptive drift"""
    moment_eps: Annotated[Positive, AddedLater(before=1e-8)] = 1e-8
    """λ in the adaptive drift m / √(v + λ) of asgld; weights with √v below √λ move more slowly"""
    clip: Literal["grad_norm", "plain_norm", "sum_elementwise", "sum_norm", "none"] = "grad_norm"
    """what of asgld is clipped to clip_at: the norm of the gradient before the moments (also of adam), the norm of the
    plain gradient term only, the entries or the norm of the whole drift, or nothing"""
    clip_at: Positive = 0.7
    """bound of the clipping"""
    exchange_every: CountOrZero = 0
    """updates between replica-exchange proposals; 0 means one temperature and no swaps"""
    ladder_ratio: Annotated[float, MoreThan(1)] = 3.0
    """ratio of neighbouring temperatures for replica exchange"""
    compute_dtype: Annotated[ComputeDtype, AddedLater(before="float32")] = "auto"
    """dtype of the hidden layers of critics and, in updates, of the actor: auto is bfloat16 on a GPU and float32 on a
    CPU; parameters are always float32"""
    batch_size: BatchSize = 256
    """transitions per chain and update, real and generated"""
    synthetic: bool = True
    """whether up to half of every batch is generated by a diffusion model"""
    adaptive_share: Annotated[bool, AddedLater(False)] = True
    """whether the generated part of a batch shrinks, down to none, where the simulator shows that it is wrong"""
    synthetic_capacity: BufferSize = 1_000_000
    """size of the buffer of generated transitions"""
    refresh_every: CountOrZero = 10_000
    """environment steps before the first fit of the generator, and at least between two fits"""
    refresh_growth: Annotated[Share, AddedLater(before=0.0)] = 0.2
    """between two fits lies this share of the steps so far, rounded down to a multiple of refresh_every, if that is
    more than refresh_every; 0 means that their distance does not grow"""
    action_gradient: bool = True
    """whether generated actions are moved along ∇Q and written back"""
    action_lr: Positive = 3e-4
    """step size of generated actions along ∇Q, per coordinate, each time they are sampled"""
    actor_chain: Literal["uniform", "argmax", "mean", "overflow"] = "uniform"
    """chain that the actor maximises: a random one, the one with the largest Q, the mean, or the first over 88.7"""
    actor_batches: Annotated[Count, AddedLater(before=1)] = 1
    """random chains that the actor maximises at an update, each on its own batch"""
    actors: Annotated[Literal["shared", "per_chain"], AddedLater(before="shared")] = "shared"
    """one actor for all chains, or one for each, of which a random one acts for an episode (Thompson sampling)"""
    slow_evaluation: Annotated[bool, AddedLater(before=False)] = False
    """whether the deterministic policy is the target actor: the running mean of the actor or, with an embedding, an
    older copy"""
    log_std_min: Annotated[float, AddedLater(before=-20.0)] = -20.0
    """lower bound of the log std of an action before tanh"""
    log_std_max: Annotated[float, AddedLater(before=0.5)] = 0.5
    """upper bound of the log std of an action before tanh"""
    actor_lr: Positive = 3e-4
    """Adam step size of the actor"""
    actor_clip: Annotated[NotNegative, AddedLater(before=0.0)] = 0.0
    """global norm to which the actor's gradient is clipped; 0 means no clipping"""
    alpha_lr: NotNegative = 3e-4
    """Adam step size of log α; 0 keeps α at its initial value"""
    alpha_init: Positive = 0.2
    """initial entropy weight α"""
    target_entropy: float | None = None
    """entropy that α is tuned to reach; None means entropy_per_action times dim(A)"""
    entropy_per_action: Annotated[float, AddedLater(before=-1.0)] = -1.0
    """target entropy per dimension of the action"""
    entropy_range: Annotated[EntropyRange, AddedLater(before="unit")] = "unit"
    """range of the actions that target_entropy is meant for: unit is [−1, 1], env is the environment's own"""
    tau: PositiveShare = 0.005
    """Polyak weight of the new parameters in target networks, and of a batch in running averages"""
    bound_factor: Positive = 3.0
    """the sampled return target is clipped to Q ± this many times the mean σ"""
    std_eps: NotNegative = 0.1
    """ε in the denominators and in the scale of the distributional loss"""
    generator: synthesis.Config = field(default_factory=synthesis.Config)
    released: Released = field(default_factory=Released)
    encoder: Annotated[EncoderOptions, AddedLater(before=EncoderOptions())] = field(default_factory=EncoderOptions)

    @property
    def needs_gpu(self) -> bool:
        """Whether critics and generator take more multiplications per update than a CPU can do in a reasonable time."""
        weights = sum(width * following for width, following in zip(self.hidden, self.hidden[1:], strict=False))
        if self.network != "mlp":
            weights = (8 * self.blocks + 1) * self.width**2
        products = self.chains * self.critics_per_chain * self.batch_size * weights
        if self.synthetic and self.refresh_every:
            g = self.generator
            products += g.train_steps * g.batch_size * g.blocks * g.width**2 // self.refresh_every
        return products > 3e8

    def check(self, experiment: RunOptions) -> None:
        if self.synthetic_capacity < self.chains:
            raise InputError(f"--synthetic-capacity {self.synthetic_capacity}: must be at least --chains {self.chains}")
        if self.synthetic and self.batch_size < 2:
            raise InputError(f"--batch-size {self.batch_size}: must be at least 2, because half of it is generated")
        if self.anneal_from > self.anneal_to:
            raise InputError(f"--anneal-from {self.anneal_from}: must not be greater than --anneal-to {self.anneal_to}")
        if self.log_std_min >= self.log_std_max:
            raise InputError(f"--log-std-min {self.log_std_min}: must be less than --log-std-max {self.log_std_max}")
        self._check_critics()
        self._check_actors()
        self.generator.check()

    def _check_critics(self) -> None:
        if self.head == "histogram":
            if not self.distributional:
                raise InputError("--no-distributional: a histogram is a distribution; leave out --head histogram")
            if not self.value_bound:
                raise InputError("--value-bound 0: must be greater than 0, because --head histogram has a range")
        if self.temperature and (not self.distributional or self.sampler == "adam" or self.released.shared_averages):
            raise InputError(
                f"--temperature {self.temperature}: not with --no-distributional, --sampler adam or "
                "--released.shared-averages"
            )
        accidents = self.released.std_without_gradient or self.released.shared_averages
        if self.head == "histogram" and accidents:
            raise InputError(
                "--head histogram: not with --released.std-without-gradient or --released.shared-averages, which are "
                "about the std of a Gaussian"
            )
        if self.network != "mlp" and self.sampler == "underdamped":
            raise InputError(f"--sampler underdamped: would leave the unit rows of --network {self.network}")
        if self.embedding and len(self.hidden) < 2:
            raise InputError(f"--hidden {self.hidden[0]}: needs at least two layers with --embedding")
        if self.embedding and self.network == "batch_norm":
            raise InputError("--embedding: not with --network batch_norm")
        published = self.released.q_ascent or self.released.weight_norm or self.released.delay > 1
        if published and (self.embedding or self.network == "batch_norm"):
            found = "--embedding" if self.embedding else "--network batch_norm"
            raise InputError(f"{found}: not with --released.q-ascent, --released.weight-norm or --released.delay")
        if self.exchange_every:
            self._check_exchange()

    def _check_exchange(self) -> None:
        """Replica exchange knows the loss of the paper only."""
        beyond = {
            "--head histogram": self.head == "histogram",
            "--network batch_norm": self.network == "batch_norm",
            "--embedding": self.embedding,
            "--temperature": bool(self.temperature),
            "--actors per_chain": self.actors == "per_chain",
            "--value-bound": bool(self.value_bound),
            "--pessimism": self.pessimism != 1.0 or self.endless_pessimism not in (None, 1.0),
            "--weight-prior": bool(self.weight_prior),
            f"--sampler {self.sampler}": self.sampler in ("underdamped", "adam"),
        }
        for option, used in beyond.items():
            if used:
                raise InputError(f"--exchange-every {self.exchange_every}: must be 0 with {option}")

    def _check_actors(self) -> None:
        if self.actor_batches > self.chains:
            raise InputError(f"--actor-batches {self.actor_batches}: must not be more than --chains {self.chains}")
        several = self.actors == "per_chain" or self.actor_batches > 1
        if several and self.actor_chain != "uniform":
            raise InputError(f"--actor-chain {self.actor_chain}: must be uniform with several chains per update")
        if self.actors == "per_chain" and self.actor_batches > 1:
            raise InputError(f"--actor-batches {self.actor_batches}: must be 1 with --actors per_chain")
