"""From a folder of photographs to a paper's table: two seeds of two losses, significance tests, a LaTeX file."""

import re

import cv2
import numpy as np
import pytest

from tests.journeys.journey import Journey


def write_photos(folder):
    """Write 30 classes in 6 groups, with 8 small images per class; a class's images are similar, a group's a little."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 256, (6, 4, 4, 3))
    for number in range(30):
        base = np.clip(groups[number // 5] + rng.integers(-60, 60, (4, 4, 3)), 0, 255).astype(np.uint8)
        place = folder / f"group {number // 5}" / f"class_{number} & co"
        place.mkdir(parents=True)
        for i in range(8):
            image = cv2.resize(base, (56, 48), interpolation=cv2.INTER_CUBIC) + rng.normal(0, 60, (48, 56, 3))
            cv2.imwrite(str(place / f"{i}.jpg"), np.clip(image, 0, 255).astype(np.uint8))


@pytest.mark.slow
@pytest.mark.long
def test_runs_of_two_seeds_and_two_losses_give_a_latex_table(tmp_path):
    write_photos(tmp_path / "photos")
    journey = Journey(tmp_path)
    journey.hgld("build-shards folders --source photos --out shards")
    journey.hgld("train --data shards --out runs --loss HAPPIER,NormSoftmax --seeds 2 --epochs 1")
    shown = journey.hgld("report runs --latex table.tex")
    journey.check()
    for loss in ("HAPPIER", "NormSoftmax"):
        assert re.search(rf"^loss={loss} .*\d\d\.\d\d ± \d", shown, re.MULTILINE), shown
    table = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert table.count("\\begin{table}") == table.count("\\bottomrule") == 1
    assert "over 2 seeds" in table
    assert re.search(r"^    loss & R@1 .* \\\\$", table, re.MULTILINE)
    assert len(re.findall(r"^    (?:HAPPIER|NormSoftmax) & .*\$\\pm\$", table, re.MULTILINE)) == 2
    assert "\\textbf{" in table
