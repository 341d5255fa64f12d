"""A run whose resize lies below its size: evaluation, the PCA's sample and the exported file mean the same by it."""

import pytest

from hgld.data.views import TestView
from hgld.distributed import launch
from hgld.errors import ConfigError
from hgld.training.batches import TrainingData, evaluation_view
from hgld.training.evaluation import check_evaluation
from hgld.training.inference.embedder import Embedder
from hgld.training.inference.export import _description
from tests.training.small_runs import options, write_small
from tests.training.untrained_run import small_model


def test_a_resize_below_the_size_is_the_size_everywhere(tmp_path):
    config = options(size=24, resize=18)
    alone, model = launch("cpu"), small_model()
    assert Embedder.as_trained(model, config, alone).view == TestView(24, 24)
    assert evaluation_view(config.images, size=48) == TestView(48, 48)
    about = _description(config, model, "model.pt", "torchscript", ())["transforms"]
    assert (about[1]["short_side"], about[2]["size"]) == (24, 24)
    source = TrainingData(config, str(write_small(tmp_path / "data")), alone)
    assert {tuple(batch.images.shape[1:]) for batch in source.sample()} == {(3, 24, 24)}


def test_a_view_that_cannot_be_is_refused_before_the_epochs():
    for wrong, said in (
        ({"test_size": 20_000}, "size of a view is 20000"),
        ({"test_geometry": "original", "max_pixels": 10**9}, "max_pixels of a view is 1000000000"),
        ({"test_scales": (1.0, 2000.0)}, "That is 16 times the scale 2000"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_evaluation(options(**wrong), "nowhere")


def test_other_sizes_keep_the_proportion():
    images = options(size=16, resize=18).images
    assert evaluation_view(images) == TestView(16, 18)
    assert evaluation_view(images, size=32) == TestView(32, 36)
    assert evaluation_view(images, size=32, resize=33) == TestView(32, 33)


def test_a_run_is_evaluated_in_the_geometry_that_it_states_and_exported_for_squares():
    alone, model = launch("cpu"), small_model()
    whole = options(size=24, resize=28, test_geometry="longest", test_size=48, test_scales=(1.0, 0.5), scale_p=3.0)
    embedder = Embedder.as_trained(model, whole, alone)
    assert embedder.view == TestView(48, 56, "longest")
    assert (embedder.scales, embedder.scale_p) == ((1.0, 0.5), 3.0)
    record = _description(whole, model, "model.pt", "torchscript", ())
    assert record["input"]["shape"] == ["batch", 3, 24, 24]
    assert record["transforms"][1:] == [
        {"name": "resize", "short_side": 28, "interpolation": "bilinear", "antialias": True},
        {"name": "center_crop", "size": 24},
    ]
    squashed = options(size=24, test_geometry="squash", test_size=32)
    (_, resized) = _description(squashed, model, "model.pt", "torchscript", ())["transforms"]
    assert resized == {"name": "resize", "width": 32, "height": 32, "interpolation": "bilinear", "antialias": True}
