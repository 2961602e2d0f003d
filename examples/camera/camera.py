"""Reads frames of a camera: of a network camera (MJPEG over HTTP), or of a device node. Pure but for that input."""

import os
import urllib.request

DEVICE = "DEVICE_NEPTUNE_IO_CAMERA"
BLOCK = 4096
LONGEST_FRAME = 8 << 20


def source(environment):
    """Return the URL or the device of the camera, and the text that may be logged: a URL may contain a password."""
    url = environment.get("CAMERA_URL")
    host = environment.get("CAMERA_HOST")
    if url:
        return url, "the camera of CAMERA_URL"
    if host:
        return f"http://{host}{environment.get('CAMERA_PATH', '/stream.mjpg')}", f"the camera {host}"
    device = environment.get(DEVICE)
    if device:
        return device, f"the device {device}"
    raise SystemExit(f"no camera: set CAMERA_URL or CAMERA_HOST, or request neptune.io/camera ({DEVICE})")


def frames(place):
    """Yield the frames of a URL or a device, until it ends."""
    if place.startswith(("http://", "https://")):
        with urllib.request.urlopen(place, timeout=10) as stream:
            yield from parts(stream)
        return
    # A driver that gives frames by read(); a device that needs memory mapping needs a library such as OpenCV.
    with open(place, "rb", buffering=0) as device:
        while True:
            frame = device.read(BLOCK)
            if not frame:
                return
            yield frame


def parts(stream):
    """Yield the bodies of a stream of multipart/x-mixed-replace whose parts have a Content-Length."""
    length = None
    while True:
        line = stream.readline(BLOCK)
        if not line:
            return
        name, _, value = line.decode("latin-1").partition(":")
        if name.strip().lower() == "content-length":
            length = int(value)
            if not 0 < length <= LONGEST_FRAME:
                raise ValueError(f"a frame of {length} bytes")
        elif not line.strip() and length is not None:
            body = stream.read(length)
            if len(body) < length:
                return
            yield body
            length = None


class Motion:
    """Detects a change of the scene by the size of compressed frames, which grows with what is in the picture."""

    def __init__(self, limit):
        """Call a scene changed if the size differs by more than this share of the usual size."""
        self.limit, self.usual = limit, None

    def probability(self, frame):
        """Return how probable a change is; 0.5 at the limit."""
        size = len(frame)
        before = self.usual or size
        self.usual = before + (size - before) * 0.1
        return min(1.0, abs(size - before) / before / (2 * self.limit))


def environment():
    """Return the environment of this process."""
    return dict(os.environ)
