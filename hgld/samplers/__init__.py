"""Batch samplers: each batch depends only on (seed, epoch, step); for one process or many."""

from hgld.samplers.batch_sampler import BatchSampler, ClassBalanced, EpochSampler, RepeatedAugmentation
from hgld.samplers.pk import HierarchicalPKSampler, PKSampler

__all__ = [
    "BatchSampler",
    "ClassBalanced",
    "EpochSampler",
    "HierarchicalPKSampler",
    "PKSampler",
    "RepeatedAugmentation",
]
