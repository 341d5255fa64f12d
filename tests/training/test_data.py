"""Batches do not depend on the number of processes, and epochs of any length continue the sampler's order."""

from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld.distributed import Processes
from hgld.errors import ConfigError, InputError
from hgld.training.batches import TrainingData, merged_labels
from hgld.training.config import TrainConfig, with_fields
from hgld.training.config_checks import check_config
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.hgld.streamed_dataset import joined, same_batches
from tests.rows import each_row
from tests.training.small_runs import STEPS, options

CPU = torch.device("cpu")
ALONE = Processes(0, 1, CPU)


@each_row("stream", [False, True])
def test_batches_of_all_processes_concatenate_to_the_global_batch(stream, data):
    config = options(stream=stream)
    parts = [list(TrainingData(config, data, Processes(r, 2, CPU)).batches(1)) for r in range(2)]
    alone = list(TrainingData(config, data, ALONE).batches(1))
    assert len(alone) == STEPS
    assert same_batches(joined(parts), alone)


@each_row(("processes", "hint"), [(5, "--batch-size 20 or less"), (16, "fewer processes")])
def test_error_about_too_many_classes_per_batch_suggests_a_valid_batch_size(processes, hint, data):
    with pytest.raises(ConfigError, match=f"needs 40 classes per batch, but split 'train' of .* has 12. Use {hint}"):
        TrainingData(options(batch_size=80, images_per_class=2), data, Processes(0, processes, CPU))
    fitting = options(batch_size=20, images_per_class=2)
    assert TrainingData(fitting, data, Processes(0, 5, CPU)).steps_per_epoch


@each_row("stream", [False, True])
def test_epoch_started_at_any_step_has_the_same_remaining_batches(stream, data):
    source = TrainingData(options(stream=stream), data, ALONE)
    whole = list(source.batches(2))
    with closing(source.batches(2, 4)) as rest:
        assert same_batches(list(rest), whole[4:])
    with closing(source.batches(2)) as early:
        assert same_batches(list(islice(early, 2)), whole[:2])
    assert same_batches(list(source.batches(2)), whole)


@each_row("stream", [False, True])
@each_row("steps", [4, 9])
def test_epochs_of_any_length_continue_the_order_of_the_sampler(steps, stream, data):
    usual = TrainingData(options(stream=stream), data, ALONE)
    other = TrainingData(options(stream=stream, steps_per_epoch=steps), data, ALONE)
    assert other.steps_per_epoch == steps
    expected = list(islice((batch for epoch in range(3) for batch in usual.batches(epoch)), 2 * steps))
    assert same_batches([batch for epoch in range(2) for batch in other.batches(epoch)], expected)


def sampled(data, processes, **fields):
    """Return, per process, the finest classes of the images that it reads for the PCA."""
    sources = [TrainingData(options(**fields), data, Processes(r, processes, CPU)) for r in range(processes)]
    return [torch.cat([batch.labels[:, 0] for batch in source.sample()]) for source in sources]


def test_pca_sample_contains_no_image_twice(tmp_path):
    write_dataset(tmp_path, items_of_classes([25] * 12))
    (alone,) = sampled(str(tmp_path), 1, dim=256)
    assert alone.bincount().tolist() == [25] * 12
    shared = sampled(str(tmp_path), 8, dim=256, batch_size=16)
    assert [len(part) for part in shared] == [37] * 8  # gathering needs equally many images per process
    assert torch.cat(shared).bincount().max() == 25


@each_row(
    ("fields", "processes", "error", "told"),
    [
        ({}, 3, ConfigError, "3 processes"),
        ({"stream": True, "num_streams": 1}, 2, ConfigError, "1 streams of 2 processes cannot share"),
        ({"train_split": "trian"}, 1, InputError, "Did you mean 'train'"),
    ],
)
def test_invalid_training_data_is_refused(fields, processes, error, told, data):
    with pytest.raises(error, match=told):
        TrainingData(options(**fields), data, Processes(0, processes, CPU))
    with pytest.raises(InputError, match="dataset directory, not single shards"):
        TrainingData(options(), f"{data}/train-000000.tar", ALONE)


@given(st.lists(st.integers(-1, 11), min_size=1, max_size=30), st.integers(2, 5), st.integers(0, 50))
def test_merged_classes_are_unions_of_classes_that_share_a_parent_or_have_none(fine, count, seed):
    labels = np.stack([fine, np.where(np.array(fine) < 0, 3, np.array(fine) // 3)], axis=1)
    merged = merged_labels(torch.from_numpy(labels), count, seed).numpy()
    before, after = labels[:, 0], merged[:, 0]
    assert ((after >= 0) == (before >= 0)).all()
    groups = {new: set(before[after == new]) for new in set(after[after >= 0])}
    assert all(min(old) == new for new, old in groups.items())
    sizes = sorted(map(len, groups.values()))
    classes = len(set(before[before >= 0]))
    assert sum(sizes) == classes  # every class is in exactly one merged class
    assert sizes == sorted([count] * (classes // count) + [classes % count] * bool(classes % count))
    for new, old in groups.items():
        parents = {c // 3 for c in old}
        expected = parents.pop() if len(parents) == 1 else -1
        assert set(merged[after == new, 1]) == {expected}
    assert (merged[before < 0, 1] == labels[before < 0, 1]).all()


def test_merge_classes_changes_batches_and_data_checksum(data):
    plain, merged = (TrainingData(options(merge_classes=count), data, ALONE) for count in (1, 3))
    assert len(merged.labels[:, 0].unique()) < len(plain.labels[:, 0].unique())
    assert merged.facts["checksum"] != plain.facts["checksum"], "only the labels differ"
    for batch in merged.batches(0):
        assert torch.equal(batch.labels, merged.labels[batch.indices])
    with pytest.raises(ConfigError, match="CSL learns the tree of the classes, which --merge-classes breaks"):
        check_config(with_fields(TrainConfig(), {"loss": "CSL", "merge_classes": 2}))
