"""Frames to a file: MP4 where there is an ffmpeg, an animated GIF everywhere."""

import contextlib
import importlib
import io
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from corral.errors import CorralError
from corral.running.files import write_atomically


def find_ffmpeg() -> str | None:
    """The program: the system's, or the one inside the package imageio-ffmpeg."""
    found = shutil.which("ffmpeg")
    if found is None:
        # ImportError: there is no such package; RuntimeError: it came without the program
        with contextlib.suppress(ImportError, RuntimeError):
            found = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    return found


def write_picture(path: Path, frame: np.ndarray) -> None:
    """A PNG of one frame (h, w, 3) uint8."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(frame).save(content, "PNG", optimize=True)
    write_atomically(path, content.getvalue())


def write_gif(path: Path, frames: Iterable[np.ndarray], frames_per_second: float) -> None:
    """An animated GIF of frames (h, w, 3) uint8 that plays for ever.

    All frames share the colours of the first, undithered: what does not move stays the same, and costs no bytes.
    """
    from PIL import Image

    images = map(Image.fromarray, frames)
    first = next(images).quantize(256, dither=Image.Dither.NONE)
    rest = (image.quantize(palette=first, dither=Image.Dither.NONE) for image in images)
    content = io.BytesIO()
    # GIF counts time in hundredths of a second.
    duration = 10 * round(100 / frames_per_second)
    first.save(content, "GIF", save_all=True, append_images=rest, duration=duration, loop=0)
    write_atomically(path, content.getvalue())


def write_mp4(path: Path, frames: Iterable[np.ndarray], frames_per_second: float, ffmpeg: str) -> None:
    """An MP4 of frames (h, w, 3) uint8, h and w even, in the encoding that players expect."""
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
            lines = said.read_text(errors="replace").strip().splitlines() or ["no reason given"]
            raise CorralError(f"ffmpeg could not write {path}: {lines[-1]}; write a .gif instead")
        write_atomically(path, made.read_bytes())


def _feed(process: "subprocess.Popen[bytes]", frames: Iterator[np.ndarray]) -> None:
    """All frames to the program's input, then wait for it; it is ended if making the frames fails."""
    assert process.stdin is not None
    try:
        # It may give up before the end; its exit status and its words then say why.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            for frame in frames:
                pipe.write(np.ascontiguousarray(frame).tobytes())
    except BaseException:
        process.kill()
        raise
    finally:
        process.wait()
