"""Write frames to a file: MP4 where ffmpeg is installed, an animated GIF everywhere."""

import contextlib
import importlib
import io
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from corral.errors import CorralError
from corral.running.files import write_atomically


def find_ffmpeg() -> str | None:
    """The path of ffmpeg: the system's, or the one in the package imageio-ffmpeg; None if there is neither."""
    found = shutil.which("ffmpeg")
    if found is None:
        # ImportError: the package is missing. RuntimeError: the package holds no program for this system.
        with contextlib.suppress(ImportError, RuntimeError):
            found = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    return found


def side_by_side(films: Sequence[Iterable[np.ndarray]]) -> Iterator[np.ndarray]:
    """The frames of several films next to each other; a film that ends early holds its last frame."""
    held: tuple[Any, ...] = (None,) * len(films)
    for frames in itertools.zip_longest(*films):
        held = tuple(old if new is None else new for new, old in zip(frames, held, strict=True))
        yield np.hstack(held)


def write_picture(path: Path, frame: np.ndarray) -> None:
    """Write one frame (h, w, 3) uint8 as a PNG."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(frame).save(content, "PNG", optimize=True)
    write_atomically(path, content.getvalue())


def write_gif(path: Path, frames: Iterable[np.ndarray], frames_per_second: float) -> None:
    """Write frames (h, w, 3) uint8 as an animated GIF that plays for ever.

    All frames share the 256 colours of the first and the last, undithered: pixels that do not move cost no bytes.
    """
    from PIL import Image

    images = list(frames)
    colours = Image.fromarray(np.vstack([images[0], images[-1]])).quantize(256, dither=Image.Dither.NONE)
    first, *rest = (Image.fromarray(i).quantize(palette=colours, dither=Image.Dither.NONE) for i in images)
    content = io.BytesIO()
    # GIF counts time in hundredths of a second.
    duration = 10 * round(100 / frames_per_second)
    first.save(content, "GIF", save_all=True, append_images=rest, duration=duration, loop=0)
    write_atomically(path, content.getvalue())


def write_mp4(path: Path, frames: Iterable[np.ndarray], frames_per_second: float, ffmpeg: str) -> None:
    """Write frames (h, w, 3) uint8, h and w even, as an MP4 in the pixel format that players expect."""
    stream = iter(frames)
    first = next(stream)
    height, width, _ = first.shape
    with tempfile.TemporaryDirectory() as folder:
        made, said = Path(folder) / "video.mp4", Path(folder) / "errors"
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(frames_per_second)]
        encoded = ["-an", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(made)]
        with said.open("wb") as errors:
            command = [ffmpeg, "-loglevel", "error", *raw, "-i", "-", *encoded]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors)
            _feed(process, itertools.chain([first], stream))
        if process.returncode != 0:
            lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no reason given"]
            raise CorralError(f"ffmpeg could not write {path}: {lines[-1]}; write a .gif instead")
        write_atomically(path, made.read_bytes())


def _feed(process: "subprocess.Popen[bytes]", frames: Iterator[np.ndarray]) -> None:
    """Write all frames to the program's input and wait for its end; kill it if making a frame fails."""
    assert process.stdin is not None
    try:
        # ffmpeg may give up before the end: its exit status and its error output then say why.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            for frame in frames:
                pipe.write(np.ascontiguousarray(frame).tobytes())
    except BaseException:
        process.kill()
        raise
    finally:
        process.wait()
