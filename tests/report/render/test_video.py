import sys

import numpy as np
import pytest
from PIL import Image

from corral.errors import CorralError
from corral.report.render import video as render_video


def frames(count):
    """A white square that moves to the right by 8 pixels a frame over a blue ground."""
    for k in range(count):
        frame = np.full((24, 64, 3), [10, 60, 200], np.uint8)
        frame[8:16, 8 * k : 8 * k + 8] = 255
        yield frame


def program(tmp_path, body):
    """A stand-in for ffmpeg."""
    path = tmp_path / "ffmpeg"
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_gif_has_every_frame_at_its_time_in_its_colours(tmp_path):
    path = tmp_path / "made" / "square.gif"
    render_video.write_gif(path, frames(5), 12.5)
    with Image.open(path) as gif:
        assert (gif.n_frames, gif.info["duration"], gif.info["loop"]) == (5, 80, 0)
        for k, wanted in enumerate(frames(5)):
            gif.seek(k)
            np.testing.assert_array_equal(np.asarray(gif.convert("RGB")), wanted)
    assert [p.name for p in path.parent.iterdir()] == ["square.gif"]


def test_films_side_by_side_run_together_and_the_shorter_one_holds_its_last_frame():
    made = list(render_video.side_by_side([frames(2), frames(4)]))
    assert len(made) == 4
    for k, frame in enumerate(made):
        left, right = list(frames(2))[min(k, 1)], list(frames(4))[k]
        np.testing.assert_array_equal(frame, np.concatenate([left, right], axis=1))


def test_a_gif_has_the_colours_of_its_end_too(tmp_path):
    calm, busy = np.full((24, 64, 3), 200, np.uint8), np.full((24, 64, 3), 200, np.uint8)
    busy[8:16, 8:40] = [230, 20, 10]
    render_video.write_gif(tmp_path / "red.gif", [calm, busy], 12.5)
    with Image.open(tmp_path / "red.gif") as gif:
        gif.seek(1)
        np.testing.assert_array_equal(np.asarray(gif.convert("RGB")), busy)


def test_a_picture_is_a_png_of_the_same_pixels(tmp_path):
    (frame,) = frames(1)
    render_video.write_picture(tmp_path / "square.png", frame)
    with Image.open(tmp_path / "square.png") as png:
        np.testing.assert_array_equal(np.asarray(png), frame)


def test_ffmpeg_gets_every_pixel_and_is_told_size_and_rate(tmp_path):
    ffmpeg = program(
        tmp_path, "open(sys.argv[-1], 'wb').write(' '.join(sys.argv[1:-1]).encode() + b'|' + sys.stdin.buffer.read())"
    )
    path = tmp_path / "square.mp4"
    render_video.write_mp4(path, frames(5), 25.0, ffmpeg)
    told, _, pixels = path.read_bytes().partition(b"|")
    assert b"-f rawvideo -pix_fmt rgb24 -s 64x24 -r 25.0 -i -" in told
    assert pixels == b"".join(frame.tobytes() for frame in frames(5))


def test_a_failing_ffmpeg_is_quoted_in_one_line_and_leaves_no_file(tmp_path):
    ffmpeg = program(tmp_path, "print('first\\nUnknown encoder', file=sys.stderr); sys.exit(1)")
    with pytest.raises(CorralError) as caught:
        render_video.write_mp4(tmp_path / "square.mp4", frames(8), 25.0, ffmpeg)
    assert str(caught.value).endswith("square.mp4: Unknown encoder; write a .gif instead")
    assert not (tmp_path / "square.mp4").exists()


def test_a_fault_while_drawing_ends_ffmpeg_and_is_passed_on(tmp_path):
    def faulty():
        yield from frames(2)
        raise RuntimeError("the lamp went out")

    ffmpeg = program(tmp_path, "sys.stdin.buffer.read()")
    with pytest.raises(RuntimeError, match="the lamp went out"):
        render_video.write_mp4(tmp_path / "square.mp4", faulty(), 25.0, ffmpeg)
    assert not (tmp_path / "square.mp4").exists()


def test_the_systems_ffmpeg_is_found(tmp_path, monkeypatch):
    ffmpeg = program(tmp_path, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert render_video.find_ffmpeg() == ffmpeg


def test_without_a_program_or_a_package_there_is_no_ffmpeg(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert render_video.find_ffmpeg() is None
