import re

import numpy as np
import pytest

from corral.config import Config
from corral.errors import CorralError
from corral.report.run_figure import run_figure
from corral.running import log
from corral.running.directory import RunDirectory


def write_run(directory, config, values, names=("bombs",), iterations=30):
    RunDirectory(directory).begin(config)
    run = RunDirectory(directory).open_log(log.columns(names), None)
    for k in range(iterations):
        row = {"iteration": k, "env_steps": 1000 * (k + 1), "return": values(k), "return_se": 0.1, "case": "inside"}
        for name in names:
            row |= {f"cost_{name}": 0.25, f"cost_se_{name}": 0.01, f"limit_{name}": 0.75}
            row |= {f"shaped_cost_{name}": 0.5, f"shaped_cost_se_{name}": 0.01, f"effective_limit_{name}": 0.75}
        run.append(row)
    run.close()


def texts(path) -> list[str]:
    svg = path.read_text()
    return [re.sub("<[^>]*>", "", text).strip() for text in re.findall(r"<text[^>]*>.*?</text>", svg, re.DOTALL)]


def test_one_seed_gives_a_picture_with_the_means_of_the_last_twenty_iterations(tmp_path):
    write_run(tmp_path / "run", Config("point-gather", seed=4), lambda k: float(k))
    path = run_figure(tmp_path / "run")
    assert path == tmp_path / "run" / "figure.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    found = texts(path.with_suffix(".svg"))
    assert "CPO on point-gather, seed 4, 30 iterations, 0.03 million steps" in found
    # (10 + ... + 29) / 20 = 19.5
    assert "return   (19.5 over the last 20)" in found
    assert "cost bombs   (0.25 over the last 20)" in found
    assert "limit 0.75" in found
    assert not any("C⁺" in text or "calibrated" in text for text in found)


def test_several_seeds_give_their_mean_and_spread_over_what_all_have_done(tmp_path):
    config = Config("point-gather", shape_costs=True)
    for seed, level in enumerate((1.0, 2.0, 6.0)):
        write_run(tmp_path / f"seed-{seed}", config, lambda k, level=level: level, iterations=9 + seed)
    found = texts(run_figure(tmp_path).with_suffix(".svg"))
    assert "CPO on point-gather, 3 seeds, 9 iterations, 0.009 million steps" in found
    spread = np.sqrt(((1 - 3) ** 2 + (2 - 3) ** 2 + (6 - 3) ** 2) / 2)
    assert f"return   (3 ± {spread:.2g} over the last 9)" in found
    assert "shaped cost C⁺, ±1 sd over seeds" in found
    assert "cost bombs   (C⁺ 0.5 ± 0, C 0.25 ± 0 over the last 9)" in found


def test_the_number_of_constraints_is_the_number_of_panels_below_the_return(tmp_path):
    write_run(tmp_path / "two", Config("x"), float, names=("a", "b"), iterations=3)
    write_run(tmp_path / "none", Config("x"), float, names=(), iterations=3)
    assert (
        sum(
            text.startswith("cost ") and "last" in text
            for text in texts(run_figure(tmp_path / "two").with_suffix(".svg"))
        )
        == 2
    )
    assert not any(text.startswith("cost ") for text in texts(run_figure(tmp_path / "none").with_suffix(".svg")))


def test_a_run_without_iterations_says_so(tmp_path):
    write_run(tmp_path / "run", Config("x"), float, iterations=0)
    with pytest.raises(CorralError, match="has no iterations to draw yet"):
        run_figure(tmp_path / "run")
    with pytest.raises(CorralError, match="is not the folder of a run"):
        run_figure(tmp_path / "elsewhere")
