"""The exponent of GeM for another resolution: chosen by views of training images, and what the model then pools by."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from hgld import open_dataset
from hgld.cli import main
from hgld.data.views import TestView
from hgld.errors import ConfigError, InputError
from hgld.evaluation.options import EvaluationOptions
from hgld.training.checkpoint import Checkpoint, write_checkpoint
from hgld.training.config import CONFIG, save_config
from hgld.training.evaluation import RetrievalTask, evaluate_trained
from hgld.training.inference import resolution
from hgld.training.inference.embedder import load_model, trained_embedder
from hgld.training.inference.embedding import embed
from hgld.training.inference.resolution import best_gem_p, choose_gem_p, learned_gem_p, score_gem_p, set_gem_p
from hgld.training.inference.resolution_map import map_of_run
from hgld.training.loop import train
from hgld.training.models.backbones import build_model
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import Item, items_of_classes, write_dataset
from tests.training.small_runs import options
from tests.training.untrained_run import CONFIG_OF_RUN, write_run


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A run with GeM, one without, and a dataset."""
    folder = tmp_path_factory.mktemp("gem")
    write_dataset(folder / "data", items_of_classes([5, 4, 4, 4], ["train", "test"]))
    write_dataset(folder / "tests", items_of_classes([3, 3], ["test"]))
    write_run(folder / "average")
    config = replace(CONFIG_OF_RUN, model=replace(CONFIG_OF_RUN.model, pooling="gem"))
    torch.manual_seed(0)
    model = build_model(config.model, image_size=config.images.size)
    write_checkpoint(folder / "run", Checkpoint(1, {"model": model.state_dict()}, {}))
    save_config(config, folder / "run" / CONFIG)
    return folder


def chosen_of(places, size, **options):
    model, config = load_model(places / "run")
    return choose_gem_p(model, config.images, open_dataset(places / "data", "train"), size, **options)


def test_five_views_of_every_image_decide(places, monkeypatch):
    seen = []

    def watched(model, batches, exponents, amp):
        seen.extend(batches)
        return best_gem_p(model, seen, exponents, amp=amp)

    monkeypatch.setattr(resolution, "best_gem_p", watched)
    p = chosen_of(places, 40, batch_size=24, workers=2)
    assert p in range(1, 11)
    images, instances = (torch.cat(parts) for parts in zip(*seen, strict=True))
    count = len(open_dataset(places / "data", "train"))
    assert images.shape[1:] == (3, 40, 40)
    assert len(images) >= 5 * count
    assert (instances.bincount(minlength=count) % 5 == 0).all()
    assert all(not torch.equal(images[0], images[i]) for i in range(1, 5))
    assert chosen_of(places, 40, batch_size=24, workers=1) == p


def test_large_sets_are_drawn_from(places, monkeypatch):
    monkeypatch.setattr(resolution, "_IMAGES", 4)
    monkeypatch.setattr(
        resolution, "best_gem_p", lambda model, views, _, amp: (len(torch.cat([v for _, v in views]).unique()),)
    )
    assert chosen_of(places, 24, batch_size=3, workers=1) == 4


@pytest.mark.parametrize("gem_p", [5.0, "auto"])
def test_the_model_pools_by_it(places, gem_p):
    dataset = open_dataset(places / "data", "test")
    opened: dict[str, Any] = {"device": "cpu", "size": 40, "data": str(places / "data")}
    with trained_embedder(places / "run", gem_p=gem_p, **opened) as embedder:
        found, p = embedder.embed_dataset(dataset), embedder.gem_p
    assert p is not None
    assert p == (5.0 if gem_p == 5.0 else chosen_of(places, 40, batch_size=8, workers=2))
    model, _ = load_model(places / "run")
    set_gem_p(model, p)
    assert f"p={p:.3g}" in repr(model.pooling)
    torch.testing.assert_close(found, embed(model, dataset, view=TestView(40, 47)), atol=1e-5, rtol=0)
    with trained_embedder(places / "run", **opened) as embedder:
        assert embedder.gem_p is None
        assert p == 3.0 or not torch.allclose(embedder.embed_dataset(dataset), found, atol=1e-4)


def test_what_cannot_be_chosen_is_refused(places):
    options: dict[str, Any] = {"device": "cpu", "data": str(places / "data")}
    either: tuple[Any, ...] = (2.0, "auto")
    for gem_p in either:
        with pytest.raises(ConfigError, match="GeM"), trained_embedder(places / "average", gem_p=gem_p, **options):
            pass
    options["data"] = str(places / "tests")
    with pytest.raises(InputError, match="no split 'train'"), trained_embedder(places / "run", gem_p="auto", **options):
        pass


@pytest.fixture(scope="module")
def classified(tmp_path_factory):
    """A run of MultiGrain with GeM, and its dataset with the same classes in the test."""
    folder, rng = tmp_path_factory.mktemp("classified"), np.random.default_rng(0)
    items = [
        Item((c, 0), split, jpeg(rng, 40 + c), width=40 + c)
        for split in ("train", "test")
        for c in range(4)
        for _ in "abc"
    ]
    write_dataset(folder / "data", items)
    fields = {"loss": "MultiGrain", "lambda_": 1.0, "sampler": "shuffled", "images_per_class": 4, "pooling": "gem"}
    asked = {"epochs": 1, "gem_learned": False, "evaluate_on": (), "metrics": ("top-1",), "best_by": "top-1"}
    train(options(**fields, **asked), str(folder / "data"), folder / "run")
    return folder


def test_the_map_holds_what_single_evaluations_and_searches_find(classified, tmp_path):
    data, sizes, exponents = str(classified / "data"), (24, 16), (1.0, 3.0, 8.0)
    found = map_of_run(classified / "run", data, sizes, exponents, split="test", device="cpu", geometry="longest")
    assert found is not None
    assert (found.sizes, found.exponents, found.trained) == ((16, 24), exponents, (16, 3.0))
    assert list(found.values) == ["top-1", "top-5", "views found"]
    opened: dict[str, Any] = {"device": "cpu", "data": data, "which": "best", "geometry": "longest"}
    task, metrics = RetrievalTask(data, "test"), EvaluationOptions(metrics=("top-1", "top-5"))
    for row, size in enumerate(found.sizes):
        for column, p in enumerate(exponents):
            with trained_embedder(classified / "run", size=size, gem_p=p, **opened) as embedder:
                report = evaluate_trained(embedder, task, options=metrics)
            assert report is not None
            assert {n: found.values[n][row, column] for n in report.values} == pytest.approx(report.values)
        with trained_embedder(classified / "run", size=size, **opened) as embedder:
            chosen, scores = score_gem_p(
                embedder.model,
                options(pooling="gem").images,
                open_dataset(data, "train"),
                size,
                batch_size=embedder.batch_size,
                workers=1,
                exponents=exponents,
            )
        assert found.values["views found"][row].tolist() == pytest.approx(list(scores.values()))
        assert found.best("views found")[size] == chosen
    files = found.save(tmp_path / "map")
    assert sorted(files) == sorted(path.name for path in (tmp_path / "map").iterdir())
    table = pl.read_csv(tmp_path / "map" / "resolutions.csv")
    assert table["top-1"].to_list() == pytest.approx(found.values["top-1"].reshape(-1).tolist(), abs=1e-6)
    drawn = (tmp_path / "map" / "resolutions-top-1.svg").read_text()
    for value in found.values["top-1"].reshape(-1):
        assert f"{100 * value:.1f}</text>" in drawn


def test_p_tuned_for_a_size_is_learned_from_the_first_images_of_every_class(classified, monkeypatch):
    monkeypatch.setattr(resolution, "_TUNING_IMAGES", 2)
    seen, given = [], []

    def watched(model, classifier, batches, steps, *, amp):
        assert amp == "bf16"
        seen.extend(batches)
        given.append((steps, learned_gem_p(model, classifier, seen, steps, amp=amp)))
        return given[0][1]

    monkeypatch.setattr(resolution, "learned_gem_p", watched)
    data = str(classified / "data")
    with trained_embedder(
        classified / "run", device="cpu", data=data, size=24, geometry="longest", gem_p="tuned", amp="bf16"
    ) as one:
        assert (one.gem_p, len(seen)) == (given[0][1], given[0][0])
        assert f"p={one.gem_p:.3g}" in repr(one.model.pooling)
    assert torch.cat([targets for _, targets in seen]).bincount().tolist() == [2] * 4
    assert all(max(images.shape[2:]) == 24 for images, _ in seen)  # whole images, as in the test
    assert given[0][1] != 3.0


def test_what_cannot_be_tuned_is_refused(places):
    tuned = trained_embedder(places / "run", device="cpu", data=str(places / "data"), gem_p="tuned")
    with pytest.raises(ConfigError, match="there is no classifier"), tuned:
        pass


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


def test_the_command_line_says_what_it_chose(places, tmp_path, capsys):
    of_run = ["--checkpoint", places / "run", "--data", places / "data", "--split", "test", "--device", "cpu"]
    code, printed, _ = run(capsys, "embed", *of_run, "--out", tmp_path / "e.npy", "--gem-p", "auto", "--json")
    assert code == 0
    p = json.loads(printed)["gem_p"]
    code, printed, _ = run(capsys, "evaluate", *of_run, "--gem-p", "auto", "--json")
    assert code == 0
    assert json.loads(printed)["settings"]["gem_p"] == p
    code, printed, _ = run(capsys, "embed", *of_run, "--out", tmp_path / "e.npy", "--gem-p", "2.5")
    assert (code, "GeM's p 2.5" in printed) == (0, True)
    code, _, told = run(capsys, "embed", *of_run, "--out", tmp_path / "e.npy", "--gem-p", "0")
    assert (code, "expected auto, tuned or a number above 0" in told) == (2, True)
