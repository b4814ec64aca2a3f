"""What is measured as an update is the update of training."""

import re

import pytest

from benchmarks.bench import update


@pytest.mark.slow
def test_every_matrix_product_of_every_part_is_in_full_float32_as_in_training():
    for name, part in update.parts(1_000, None).items():
        products = re.findall(r"dot_general.*", part.function.lower(*part.given).as_text())
        assert products or name == "dual"
        assert all("precision = [HIGHEST, HIGHEST]" in product for product in products), name
