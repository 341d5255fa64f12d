"""Samplers of batches: functions of (seed, epoch, step), for one process or many."""

from hgld.samplers.batch_sampler import BatchSampler
from hgld.samplers.class_balanced import ClassBalanced
from hgld.samplers.epoch import EpochSampler, RepeatedAugmentation
from hgld.samplers.hierarchical_pk import HierarchicalPKSampler
from hgld.samplers.pk import PKSampler

__all__ = [
    "BatchSampler",
    "ClassBalanced",
    "EpochSampler",
    "HierarchicalPKSampler",
    "PKSampler",
    "RepeatedAugmentation",
]
