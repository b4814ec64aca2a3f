import pytest

from corral.report.style import drawing, replacing


def write_half(path):
    with replacing(path) as temporary:
        temporary.write_text("sec")
        raise RuntimeError("half way")


def test_a_file_is_replaced_only_by_a_complete_one(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with replacing(path) as temporary:
        temporary.write_text("first")
    with pytest.raises(RuntimeError, match="half way"):
        write_half(path)
    assert path.read_text() == "first"
    assert [file.name for file in path.parent.iterdir()] == ["file.txt"]


def test_a_drawing_is_a_png_of_the_size_asked_for(tmp_path):
    path = tmp_path / "figure.png"
    with drawing(path, 2, (4.0, 3.0)) as axes:
        assert len(axes) == 2
        axes[0].plot([0, 1], [0, 1])
    from matplotlib.image import imread

    assert imread(path).shape[:2] == (330, 440)  # 110 dots per inch
