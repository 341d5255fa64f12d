"""Exit codes, messages and JSON of hgld build-hierarchy, and hints for unknown subcommands."""

import json
from pathlib import Path

import pytest

from hgld.cli import VERBS
from hgld.errors import ConfigError
from hgld.pipelines.hierarchy import build
from hgld.pipelines.hierarchy.config import BuildConfig, ClusterConfig, stage_configs
from hgld.published.statements import all_statements
from hgld.settings import options_of
from tests.rows import each_row

COMMONS = "https://commons.wikimedia.org/wiki/Category:"
NAMES = ("castle", "water castle", "lake", "mountain lake", "church building", "wooden church")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "names.csv"
    rows = [f"{i},{COMMONS}L{i},{NAMES[i % len(NAMES)]}" for i in range(24)]
    path.write_text("\n".join(["landmark_id,category,supercategory", *rows, ""]))
    return path


@each_row(
    ("verb", "hint"),
    [("build-hierachy", "Did you mean 'build-hierarchy'?"), ("fly", f"The subcommands are: {', '.join(VERBS)}.")],
)
def test_unknown_subcommand_error_suggests_the_nearest_or_all_subcommands(refusal, verb, hint):
    assert f"there is no subcommand {verb!r}. {hint}" in refusal(verb)


def test_build_prints_a_table_and_then_json(output, json_of, table, tmp_path):
    arguments = ("build-hierarchy", "--names", table, "--out", tmp_path / "out", "--encoder", "lexical")
    out = output(*arguments, said="")
    for stage in ("scrape", "clean", "embed", "cluster", "toplevel", "review", "export", "report"):
        assert f"\n{stage} " in f"\n{out}"
    assert str(tmp_path / "out" / "train_label_to_hierarchical.csv") in out
    assert out.endswith(f"next: hgld review {tmp_path / 'out'}\n")
    build = json_of(*arguments, said="")
    assert not any(stage["ran"] for stage in build["stages"].values())
    assert build["stages"]["clean"]["counts"]["kept (train)"] == 24
    assert all(Path(file).is_file() for file in build["files"].values())


@pytest.fixture
def config_of(hgld, table, tmp_path, monkeypatch):
    """Return a function from flags to the config with which a build of landmarks would start."""
    asked: list[BuildConfig] = []

    def start(out, config, *_, **__):
        asked.append(config)
        raise ConfigError("started")

    monkeypatch.setattr(build, "build_hierarchy", start)

    def config(*flags):
        assert "started" in hgld("build-hierarchy", "--landmarks", f"train={table}", "--out", tmp_path / "o", *flags)[2]
        return asked.pop()

    return config


def test_as_published_takes_the_papers_choice_for_every_option_without_a_flag(config_of):
    found = config_of("--as-published")
    assert (found.scrape.route, found.embed.encoder) == ("html", "clip:ViT-L-14/openai")
    assert (found.cluster.method, found.cluster.groups, found.clean.multi_name_policy) == ("kmeans", 78, "drop")
    assert any(one.startswith("route (section on H-GLDv2): the paper says") for one in found.as_published)
    assert any(one.startswith("prompts of CLIP: the paper does not say; its code") for one in found.as_published)
    given = config_of("--as-published", "--route", "api", "--groups", "20", "--encoder", "lexical")
    assert (given.scrape.route, given.cluster.groups, given.embed.encoder) == ("api", 20, "lexical")
    assert given.cluster.method == "kmeans"
    assert sum("because the flag was given" in one for one in given.as_published) == 3
    plain = config_of()
    assert (plain.scrape.route, plain.cluster, plain.as_published) == ("api", ClusterConfig(), ())


def test_every_choice_of_the_paper_is_in_its_statements(config_of):
    """A field of a build that the statements name is set, and no statement names a field that the build lacks."""
    of_build = [one for one in all_statements() if "build:h-gldv2" in one.subject]
    fields = {name for config in stage_configs().values() for name in options_of(config)}
    named = {one.key for one in of_build}
    assert named & fields == {"route", "encoder", "method", "groups", "multi_name_policy"}
    others = {"reviewers", "coarsest level", "prompts of CLIP", "seed of k-means", "landmarks without a name"}
    assert named - fields == others
    assert len(config_of("--as-published").as_published) == len(of_build)


@pytest.mark.slow
def test_build_as_published_shows_the_published_counts_at_each_step_and_records_its_choices(output, json_of, tmp_path):
    given = ("build-hierarchy", "--sample", "--as-published", "--encoder", "lexical", "--out", tmp_path / "out")
    out = output(*given)
    for shown in (
        "647 landmarks (train) (203,094 published)",
        "281 names (5,700 published)",
        "78 groups (78 published)",
    ):
        assert shown in out
    assert "as published: method (section on H-GLDv2): the paper says kmeans; we do as the paper." in out
    told = json_of(*given)
    assert told["published"]["clean"]["kept (train)"] == 128_800
    record = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert record["config"]["build"]["as_published"] == told["as_published"]
    assert record["config"]["cluster"]["method"] == "kmeans"
    assert "Built as published" in (tmp_path / "out" / "report.html").read_text()


@each_row(
    ("arguments", "message"),
    [
        (("--classes", "{table}", "--as-published"), "--as-published is about landmarks"),
        ((), "give exactly one of --sample, --landmarks SPLIT=CSV, --names [SPLIT=]CSV or --classes FILE."),
        (("--sample", "--names", "{table}"), "give exactly one of"),
        (("--names", "{table}", "--names", "train={table}"), "expected one table per split"),
        (("--names", "none.csv"), "'none.csv' is not a file"),
        (("--landmarks", "{table}"), "expected SPLIT=CSV, for instance train=train_label_to_category.csv"),
        (("--landmarks", "../x={table}"), "expected SPLIT=CSV"),
        (("--sample", "--groups", "many"), "'many'; expected a whole number"),
        (("--sample", "--route", "ftp"), "route is 'ftp'; expected one of 'api', 'html'"),
        (("--sample", "--out", "{table}"), "is a file"),
    ],
)
def test_contradictory_build_options_are_refused_before_any_work(refusal, table, tmp_path, arguments, message):
    given = [argument.replace("{table}", str(table)) for argument in arguments]
    assert message in refusal("build-hierarchy", "--out", tmp_path / "out", *given)
    assert not (tmp_path / "out").exists()
