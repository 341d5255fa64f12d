"""Results that change with each field of a training config: batches, models, losses, rates and files."""

import hashlib
import sys
import types
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from hgld import distributed, open_dataset
from hgld.data.dataset import ShardDataset
from hgld.distributed import Processes
from hgld.errors import HgldError, InputError
from hgld.samplers import PKSampler
from hgld.training import log, loop, state
from hgld.training.batches import TrainingData, evaluation_view
from hgld.training.config import (
    BatchConfig,
    ImagesConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainConfig,
)
from hgld.training.criterion import build_criterion
from hgld.training.inference.embedder import Embedder
from hgld.training.loop import train
from hgld.training.models.backbones import build_model
from hgld.training.models.embedding_model import EmbeddingModel
from hgld.training.models.small_net import SmallNet
from hgld.training.optimizers import build_optimizers, groups_of, set_rates
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.training.small_runs import LABELS, TREE, write_half_damaged, write_small
from tests.witnesses import World, witness

CPU = torch.device("cpu")
ALONE = Processes(0, 1, CPU)


def digest(*tensors: Tensor) -> str:
    """Return a checksum of tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().float().numpy().tobytes())
    return found.hexdigest()


@witness(RunConfig, {"loss": "NormSoftmax", "epochs": 1, "evaluate_on": ()}, max_faults=1.0)
def trained_on_damaged_images(config: TrainConfig, world: World) -> bool:
    """Tell whether a run finishes if half of its images are replaced."""
    try:
        return train(config, str(world.once("damaged", write_half_damaged)), world.new()).finished
    except InputError:
        return False


def small(world: World) -> str:
    return str(world.once("small", write_small))


# Batches.


@witness(BatchConfig, batch_size=16, images_per_class=4, sampler="shuffled", coverage="classes", steps_per_epoch=4)
@witness(BatchConfig, {"batch_size": 8}, merge_classes=3)
@witness(BatchConfig, stream=True)
@witness(BatchConfig, {"stream": True}, num_streams=1)
@witness(BatchConfig, {"sampler": "hierarchical-pk", "batch_size": 4}, super_classes=1, super_level="fine")
@witness(BatchConfig, {"sampler": "repeated-augmentation", "repeats": 2}, repeats=4)
@witness(RunConfig, seed=1, train_split="test")
@witness(RunConfig, {"stream": True}, seed=1, train_split="test")
@witness(RunConfig, {"sampler": "hierarchical-pk"}, seed=1)
@witness(RunConfig, {"sampler": "repeated-augmentation", "repeats": 2}, seed=1)
@witness(RunConfig, {"sampler": "class-balanced"}, seed=1)
@witness(RunConfig, {"sampler": "shuffled"}, seed=1)
def drawn(config: TrainConfig, world: World) -> Any:
    """Return the item indices in the batches of two epochs."""
    data = TrainingData(config, small(world), ALONE)
    return [batch.indices.tolist() for epoch in range(2) for batch in data.batches(epoch)]


@witness(ImagesConfig, {"sampler": "shuffled", "batch_size": 48}, size=24, crop_min=0.9, flip=1.0)
@witness(ImagesConfig, {"sampler": "shuffled", "batch_size": 48}, train_crop="squared")
@witness(ImagesConfig, {"sampler": "shuffled", "batch_size": 48}, jitter=0.5, lighting=0.5)
@witness(ImagesConfig, {"sampler": "shuffled", "batch_size": 48}, autoaugment=True, erasing=0.5)
@witness(RunConfig, {"sampler": "shuffled", "batch_size": 48}, seed=1)
def pictures(config: TrainConfig, world: World) -> Any:
    """Return digests of the augmented views of a batch of equal images, so that sampling has no effect."""

    def write(folder: Path) -> str:
        (item,) = items_of_classes([1])
        write_dataset(folder, [item] * 48)
        return str(folder)

    return [digest(batch.images) for batch in TrainingData(config, world.once("alike", write), ALONE).batches(0)]


@witness(RunConfig, {"dim": 1}, seed=1)
@witness(ImagesConfig, {"dim": 1, "size": 8, "resize": 8}, resize=40, size=6)
@witness(ModelConfig, {"dim": 1}, dim=2)
def sampled(config: TrainConfig, world: World) -> Any:
    """Return a digest of the preprocessed images that initialise a PCA projection."""
    assert evaluation_view(config.images).size == config.images.size
    return digest(*(batch.images for batch in TrainingData(config, small(world), ALONE).sample()))


@witness(ImagesConfig, {"size": 8, "resize": 8}, test_resize_mode="squash", test_size=12)
@witness(ImagesConfig, {"size": 8, "resize": 12}, interpolation="bicubic")
def evaluated(config: TrainConfig, world: World) -> Any:
    """Return a digest of the embeddings of the evaluation images."""
    torch.manual_seed(0)
    model = build_model(config.model, image_size=config.images.size)
    embedder = Embedder.as_trained(model, config, ALONE)
    return digest(embedder.embed_dataset(open_dataset(small(world), "test")))


@witness(ImagesConfig, workers=2)
def ahead(config: TrainConfig, world: World) -> Any:
    """Return the number of batches started before the first is returned, and the most items read by one thread call."""
    begun, read = [], []
    part, encoded = PKSampler.part, ShardDataset.encoded
    world.patch.setattr(PKSampler, "part", lambda self, *at: begun.append(at) or part(self, *at))
    world.patch.setattr(ShardDataset, "encoded", lambda self, items: read.append(len(items)) or encoded(self, items))
    with closing(TrainingData(config, small(world), ALONE).batches(0)) as batches:
        next(batches)
        return len(begun), max(read)


# Models.


def saved_weights(folder: Path) -> str:
    torch.manual_seed(9)
    folder.mkdir()
    torch.save(SmallNet().state_dict(), folder / "weights.pt")
    return str(folder / "weights.pt")


RESNET = {"backbone": "torchvision:resnet18", "size": 32}


@witness(ModelConfig, backbone="torchvision:resnet18", pooling="max", layer_norm=False, dim=4)
@witness(ModelConfig, projection="pca", pretrained=lambda world: world.once("weights", saved_weights))
@witness(ModelConfig, {"pooling": "gem"}, gem_p=5.0, gem_learned=False)
@witness(ModelConfig, RESNET, freeze_batch_norm=True)
@witness(ImagesConfig, size=24)
def embedded(config: TrainConfig, world: World) -> Any:
    """Return digests of the embeddings of noise and of the buffers, and the names of trainable parameters."""
    torch.manual_seed(0)
    noise = torch.randn(64, 144)
    torch.manual_seed(0)
    model = build_model(config.model, image_size=config.images.size, features=lambda _: noise).train()
    images = torch.randn(2, 3, config.images.size, config.images.size)
    learns = sorted(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    return digest(model(images)), learns, digest(*model.buffers())


@witness(ModelConfig, compile=True)
def compiled(config: TrainConfig, world: World) -> Any:
    """Return the names of the modules that torch.compile receives."""
    asked: list[str] = []
    world.patch.setattr(nn.Module, "compile", lambda self: asked.append(type(self).__name__))
    state._build_modules(config, TrainingData(config, small(world), ALONE), ALONE, fresh=False)
    return asked


@witness(RunConfig, {"loss": "NormSoftmax"}, process_timeout=1.0)
def minutes_that_processes_wait(config: TrainConfig, world: World) -> float:
    """Return the deadline with which a run joins its processes."""
    with patch("hgld.distributed.launch", side_effect=InputError) as launch, suppress(InputError):
        train(config, small(world), world.new())
    return launch.call_args.args[1]


@witness(RunConfig, {"pretrained": "none", **RESNET}, sync_batch_norm=True)
def shared_out(config: TrainConfig, world: World) -> Any:
    """Return the module types of the model that two GPU processes train."""
    world.patch.setattr(distributed, "DistributedDataParallel", lambda model, **_: model)
    model = build_model(config.model, image_size=config.images.size)
    pair, sync = Processes(0, 2, torch.device("cuda", 0)), config.run.sync_batch_norm
    wrapped = distributed.wrap_model(model, pair, sync_batch_norm=sync)
    return sorted({type(module).__name__ for module in wrapped.modules()})


# Losses.

HAPPIER, MEMORY = {"loss": "HAPPIER"}, {"loss": "Triplet", "memory": 30, "memory_from_epoch": 0}


@witness(LossConfig, HAPPIER, loss="SupAP", lambda_=0.5, decomposability="pair", alpha=3.0, relevance="total")
@witness(LossConfig, HAPPIER, tau=0.1, rho=10.0, delta=0.2)
@witness(LossConfig, {"loss": "SmoothRecall"}, recall_at=(3,), recall_temperature=0.3, simix=True)
@witness(LossConfig, {"loss": "SoftBinAP"}, bins=7, ties="relaxed", class_weights=True, sum_levels=True, level="mid")
@witness(LossConfig, {"loss": "SupHAP", "matryoshka": (2, 6)}, matryoshka=(3, 6))
@witness(LossConfig, {"loss": "PNP", "pnp": "Ib"}, pnp="O", pnp_b=1.0)
@witness(LossConfig, {"loss": "BlackboxAP"}, blackbox_lambda=0.1)
@witness(LossConfig, {"loss": "Contrastive"}, margin=0.6, contrastive="cosine")
@witness(LossConfig, {"loss": "Margin"}, margin=0.6, beta=0.3, reach=2.0)
@witness(LossConfig, {"loss": "CalibrationLoss"}, pair_positive=0.99, pair_negative=-0.5)
@witness(LossConfig, {"loss": "NormSoftmax"}, proxy_temperature=0.5)
@witness(LossConfig, {"loss": "CSL"}, csl_margins=(0.9, 0.5, 0.1))
@witness(LossConfig, {"loss": "Triplet", "memory_from_epoch": 0}, memory=30)
@witness(LossConfig, MEMORY, memory_from_epoch=1)
def lost(config: TrainConfig, world: World) -> Any:
    """Return loss and gradient of a second batch; a memory may hold the first batch."""
    torch.manual_seed(3)
    criterion = build_criterion(config.loss, hierarchy=TREE, train_labels=LABELS, dim=6, steps_per_epoch=2)
    instances = torch.arange(24) // 2
    criterion(torch.randn(24, 6), LABELS, instances)
    embeddings = torch.randn(24, 6, requires_grad=True)
    value, _ = criterion(embeddings, LABELS, instances)
    (gradient,) = torch.autograd.grad(value, embeddings)
    return round(float(value.detach()), 6), round(float(gradient.abs().sum()), 5)


@witness(RunConfig, deterministic=True)
def set_for_a_gpu(config: TrainConfig, world: World) -> Any:
    """Return whether a GPU computes deterministically during a run."""
    world.patch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    with loop.arithmetic(config, torch.device("cuda")):
        return torch.are_deterministic_algorithms_enabled()


# Optimizers.

SGD = {"optimizer": "sgd", "lr": 0.1, "lr_head": 0.1, "lr_proxies": 0.1}
STEP = {"schedule": "step", "milestones": (2,)}


@witness(OptimizerConfig, optimizer="sgd", lr=0.5, lr_head=0.5, lr_proxies=0.5)
@witness(OptimizerConfig, schedule="linear", warmup_steps=3)
@witness(OptimizerConfig, lr_floor=5e-4, lr_floor_proxies=5e-4)
@witness(OptimizerConfig, SGD, nesterov=True, weight_decay=0.3)
@witness(OptimizerConfig, STEP, milestones=(1,), gamma=0.5)
@witness(RunConfig, epochs=8)
def moved(config: TrainConfig, world: World) -> Any:
    """Return the parameters of backbone, head and proxies after three epochs of two steps."""
    parameters = {part: [("weight", nn.Parameter(torch.ones(2, 2)))] for part in ("backbone", "head", "proxies")}
    optimizers = build_optimizers(config.optimizer, parameters)
    for step in range(6):
        set_rates(optimizers, config.optimizer, step, steps_per_epoch=2, epochs=max(config.run.epochs, 3))
        for optimizer in optimizers:
            for group in groups_of([optimizer]):
                group["params"][0].grad = torch.full((2, 2), 0.1 * (step + 1))
            optimizer.step()
    return {part: named[0][1].tolist() for part, named in parameters.items()}


BOUNDED = {**SGD, "loss": "MultiGrain", "sampler": "repeated-augmentation"}


@witness(OptimizerConfig, BOUNDED, lr_beta=0.5, weight_decay_proxies=0.3, decay_all=True)
def rates_and_decays(config: TrainConfig, world: World) -> Any:
    """Return learning rate and weight decay of a weight, a bias and a margin boundary."""
    made = {"weight": torch.ones(2, 2), "bias": torch.ones(2), "beta": torch.tensor(1.2)}
    parameters = {part: [(n, nn.Parameter(t)) for n, t in made.items()] for part in ("backbone", "proxies")}
    groups = groups_of(build_optimizers(config.optimizer, parameters))
    return {name: (group["lr"], group["weight_decay"]) for group in groups for name in group["names"]}


@witness(ModelConfig, {**BOUNDED, "dim": 4, "lambda_": 1.0, "repeats": 2}, classifier="pretrained")
def begun(config: TrainConfig, world: World) -> Any:
    """Return a digest of the initial classifier of a run."""
    world.patch.setattr(state, "library_head", lambda *_, **__: (torch.ones(12, 4), torch.ones(12)))
    world.patch.setattr(state, "check_synsets", lambda *_: None)
    source = TrainingData(config, small(world), ALONE)
    return digest(*state._build_modules(config, source, ALONE, fresh=True)[1].parameters())


# Runs.


def files_of(run: Path) -> dict[str, Any]:
    """Return the logged steps, evaluations and checkpoints of a run."""
    kept = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    return {
        "steps": [row["step"] for row in log.read_rows(run / log.LOG)],
        "evaluations": log.read_rows(run / log.EVALUATIONS),
        "checkpoints": kept,
        "weights": {path.name: path.read_bytes() for path in (run / "checkpoints" / kept[-1]).glob("*.safetensors")},
        "best": (run / "checkpoints" / "best.json").read_text() if (run / "checkpoints" / "best.json").exists() else "",
    }


# A trial without evaluations takes half the time of one with them.
TRIAL = {"loss": "NormSoftmax", "epochs": 1, "steps_per_epoch": 2, "evaluate_on": (), "checkpoint_every": 1}
JUDGED = {**TRIAL, "evaluate_on": ("test",), "metrics": ("R@1", "AP"), "monitor": "R@1", "select_on_test": True}
BEGUN = {**JUDGED, "evaluate_start": True}


@witness(OptimizerConfig, TRIAL, frozen_epochs=1, clip_norm=0.01, amp="bf16", ema=0.5)
@witness(BatchConfig, TRIAL, micro_batch_size=4)
@witness(RunConfig, TRIAL, epochs=2, seed=1, keep=3, checkpoint_every=0, log_every=1)
@witness(RunConfig, TRIAL, device="cuda:99", loggers=("wandb:project",))
@witness(RunConfig, TRIAL, evaluate_on=("train",))
@witness(RunConfig, BEGUN, metrics=("R@1",), evaluate_start=False)
@witness(RunConfig, BEGUN, select_on_test=False, monitor="AP")
@witness(RunConfig, {**BEGUN, "epochs": 2}, blend=0.5)
@witness(RunConfig, {**JUDGED, "epochs": 2, "lr": 0.1, "lr_head": 0.1}, evaluate_every=2, monitor_tolerance=1.0)
def trained(config: TrainConfig, world: World) -> Any:
    """Return the files of a run, its micro-batch sizes, the W&B projects and the checkpoint steps."""
    passed, told, forward, written = [], [], EmbeddingModel.forward, []
    fake = types.ModuleType("wandb")
    session = types.SimpleNamespace(log=lambda *_, **__: None, finish=lambda: None)
    vars(fake)["Image"] = lambda pixels: pixels
    vars(fake)["init"] = lambda project, **_: told.append(project) or session
    fake.__spec__ = types.SimpleNamespace()  # pyright: ignore[reportAttributeAccessIssue]
    world.patch.setitem(sys.modules, "wandb", fake)

    def pass_through(model: EmbeddingModel, images: Tensor) -> Tensor:
        if model.training:
            passed.append(len(images))
        return forward(model, images)

    world.patch.setattr(EmbeddingModel, "forward", pass_through)
    write = state.write_checkpoint
    world.patch.setattr(state, "write_checkpoint", lambda run, kept: written.append(kept.step) or write(run, kept))
    folder = world.new()
    try:
        train(config, small(world), folder)
    except HgldError as error:
        return type(error).__name__
    return files_of(folder), passed, told, written
