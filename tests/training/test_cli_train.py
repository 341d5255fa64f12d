"""``hgld train``: lists and shows recipes, has a flag per field, runs, repeats and sweeps."""

import json
import re

import pytest

from hgld.training.config import TrainConfig, flat, read_config
from hgld.training.log import RunSummary
from hgld.training.recipes import RECIPES, load_recipe
from tests.rows import each_row
from tests.training.small_runs import QUICK, same, weights

RECIPE = "small-grocery"
FLAGS = [
    text
    for name, value in (QUICK | {"epochs": 1, "steps_per_epoch": 2}).items()
    for text in (f"--{name.replace('_', '-')}", ",".join(value) if isinstance(value, tuple) else str(value))
]


def test_train_list_starts_with_the_recipes_for_the_users_images(output, json_of):
    own = [name for name, recipe in RECIPES.items() if not recipe.setting.paper]
    out = output("train", "--list")
    header, *lines, last = out.splitlines()
    assert header.split() == ["name", "dataset", "loss", "backbone", "pretrained", "summary"]
    assert [line.split()[0] for line in lines] == own
    assert own[0] == "finetune"
    assert last == f"--papers lists {len(RECIPES) - len(own)} more, one for each row that papers report."
    for line in output("train", "--list", "--papers").splitlines()[1:]:
        recipe = RECIPES[line.split()[0]]
        assert line.endswith(f" Published: {recipe.brief}.") or not recipe.setting.paper
    rows = json_of("train", "--list", "--papers")["recipes"]
    assert {row["name"]: row["published"] for row in rows} == {name: one.brief for name, one in RECIPES.items()}


def test_train_show_prints_the_recipe_after_applying_flags(output, json_of):
    out = output("train", "happier-sop", "--show", "--tau", "0.05", "--recall-at", "1,2,4,8,16", "--lambda", 0.2)
    for text in ("# Published: ", "# Hardware:", "tau: 0.05", "lambda_: 0.2", "lr: 5.0e-05", "batch_norm: true\n"):
        assert text in out
    shown = json_of("train", "happier-sop", "--show")
    recipe = RECIPES["happier-sop"]
    assert shown["text"] == f"{recipe.line}\n\n{recipe.facts_of(recipe())}"
    assert {"key": "lr", "says": "5e-5", "ours": "5.0e-05", "is_followed": True}.items() <= {
        key: value for one in shown["statements"] if one["key"] == "lr" for key, value in one.items()
    }.items()
    assert shown["fields"] == json.loads(json.dumps(flat(load_recipe("happier-sop"))))


@pytest.mark.parametrize("name", ["softbin-ap-landmarks-clean", "finetune"])
def test_output_of_train_show_can_be_passed_as_config(name, output, tmp_path):
    given = ("--loss", "HAPPIER", "--alpha", 2) if name == "finetune" else ()
    (tmp_path / "shown.yaml").write_text(output("train", name, "--show", *given))
    out = output("train", "--config", tmp_path / "shown.yaml", "--show", "--json")
    assert out == output("train", name, "--show", "--json", *given)
    shown = json.loads(out)
    assert shown["recipe"] == name
    assert shown["fields"].keys() | {*shown["to_derive"]} == flat(TrainConfig()).keys()


@each_row(
    ("arguments", "message"),
    [
        (["happier-sop"], "--data and --out"),
        (["happier-sop", "--taus", "1"], "No such option '--taus'"),
        (["--config", "missing.yaml", "--show"], "does not exist"),
        (["happier-sop", "--config", __file__, "--show"], "expected only one"),
        (["happier-sop", "--show", "--loss", "SupAP,SmoothAP"], "--loss has 2 losses"),
        (["--data", "nowhere", "--out", "OUT", "--loss", "SupAP,HAPIER"], "HAPIER"),
        (["small-grocery", "--data", "nowhere", "--out", "OUT"], "nowhere"),
        (["small-grocery", "--data", "nowhere", "--out", "OUT", "--sweep", "taus=1"], "Did you mean 'tau'"),
        (["small-grocery", "--init-from", "nowhere", "--data", "D", "--out", "OUT"], "does not exist"),
    ],
)
def test_invalid_train_commands_fail_with_a_message(refusal, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    err = refusal("train", *arguments)
    assert message in " ".join(err.split())
    assert not (tmp_path / "OUT").exists()


def test_train_repeats_a_saved_config_and_starts_from_a_run(output, refusal, json_of, data, tmp_path):
    told = json_of("train", RECIPE, "--data", data, "--out", tmp_path / "a", "--seed", 3, *FLAGS, said="")
    assert "H-AP" in told["values"]["test"]
    config = read_config(tmp_path / "a" / "config.json")
    assert config.recipe == RECIPE
    assert (config.run.seed, config.run.epochs, config.loss.loss) == (3, 1, "HAPPIER")
    assert config.optimizer.lr_proxies == load_recipe(RECIPE).optimizer.lr_proxies != TrainConfig().optimizer.lr_proxies

    out = output("train", "--config", tmp_path / "a" / "config.json", "--data", data, "--out", tmp_path / "b", said="")
    # few lines: stdout is no terminal, and the run takes less than a minute
    begun, first, evaluated, ended, *values = out.splitlines()
    assert begun.startswith("small-grocery on cpu: 48 images of 12 classes")
    assert re.match(r"step 2 of 2, epoch 1: loss .* left$", first)
    assert evaluated.startswith("epoch 1, test: ")
    assert ended.startswith(f"{tmp_path / 'b'}: finished after 2 steps")
    # no line says which checkpoint is the best, because the split test does not choose one
    assert [line.split(":")[0] for line in values] == ["test", "next"]
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))

    start = ["--init-from", tmp_path / "a", "--lr", 0, "--lr-head", 0, "--frozen-epochs", 1]
    again = ["--config", tmp_path / "a" / "config.json", "--data", data]
    output("train", *again, "--out", tmp_path / "c", *start)
    before, after = (
        {name: tensor for name, tensor in weights(tmp_path / run).items() if name.startswith("model/")} for run in "ac"
    )
    assert before
    assert same(before, after)

    assert "tau" in refusal("train", RECIPE, "--data", data, "--out", tmp_path / "a", *FLAGS, "--tau", 0.02)


TAUS = ("0.01", "0.1")


@pytest.mark.slow
def test_sweep_prints_a_table_of_its_runs_and_resumes(output, refusal, json_of, data, tmp_path):
    sweep = [RECIPE, "--data", data, "--out", tmp_path / "s", *FLAGS, "--sweep", "tau=0.01,0.1", "--seeds", 2]
    out = output("train", *sweep, "--evaluate-on", "train", said="")
    assert out.startswith("| tau | finished | R@1/fine |")
    assert re.search(r"^\| 0.01 \| 2 of 2 \| \d+\.\d\d ± \d", out, re.MULTILINE)
    names = {f"tau={tau},seed={seed}" for tau in TAUS for seed in "01"}
    assert {path.name for path in (tmp_path / "s").iterdir() if path.is_dir()} == names
    logs = {path: path.read_bytes() for path in (tmp_path / "s").rglob("log.csv")}
    table = (tmp_path / "s" / "sweep.csv").read_bytes()
    again = json_of("train", *sweep, "--evaluate-on", "train")["runs"]
    assert [(row["tau"], row["finished"]) for row in again] == [(t, "2 of 2") for t in TAUS]
    # unchanged logs: the second sweep trained nothing
    assert logs == {path: path.read_bytes() for path in (tmp_path / "s").rglob("log.csv")}
    assert "nowhere" in refusal("train", *sweep, "--evaluate-on", "train", "--data", tmp_path / "nowhere")
    assert (tmp_path / "s" / "sweep.csv").read_bytes() == table


def test_size_flag_scales_the_resize_of_the_recipe(json_of):
    """Evaluation then crops the same share of the image as in the recipe."""
    for name, given, expected in (
        ("happier-sop", ("--size", 112), (112, 128)),
        ("happier-cub", ("--size", 128), (128, 144)),
        ("happier-sop", ("--size", 112, "--resize", 150), (112, 150)),
        ("small-grocery", ("--size", 224), (224, 224)),
    ):
        fields = json_of("train", name, "--show", *given)["fields"]
        assert (fields["size"], fields["resize"]) == expected


def told_by(monkeypatch, *, finished):
    """Replace the training by a summary."""

    def trained(config, data, out, **options):
        return RunSummary(finished, 3, 0, {}, {}, 1.0, 2.0, 0.1, 0, str(out))

    monkeypatch.setattr("hgld.training.loop.train", trained)


def test_stopped_train_command_exits_with_code_130(hgld, data, tmp_path, monkeypatch):
    told_by(monkeypatch, finished=False)
    code, out, _ = hgld("train", RECIPE, "--data", data, "--out", tmp_path / "run", *FLAGS)
    assert code == 130
    assert "the same command resumes it" in out
    code, out, _ = hgld("train", RECIPE, "--data", data, "--out", tmp_path / "s", *FLAGS, "--sweep", "tau=0.01,0.1")
    assert code == 130
    assert "| 0.01 | 0 of 1 |" in out


def test_only_the_main_process_prints(hgld, data, tmp_path, monkeypatch):
    told_by(monkeypatch, finished=True)
    monkeypatch.setenv("RANK", "1")
    assert hgld("train", RECIPE, "--data", data, "--out", tmp_path / "run", *FLAGS)[1:] == ("", "")
