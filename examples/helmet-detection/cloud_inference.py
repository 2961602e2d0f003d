"""The cloud worker: answers POST /<service>/predict {"data": [frame, ...]} with {"result": [boxes, ...]}."""

import http.server
import json
import threading

import detector
from worker import setting, stop_event

SERVICE = setting("SERVICE_NAME")
NMS_THRESHOLD = float(setting("NMS_THRESHOLD", "0.6"))


def checked(frame):
    """Return a valid frame, or raise ValueError."""
    if len(frame) != detector.SIDE or any(len(row) != detector.SIDE for row in frame):
        raise ValueError(f"a frame must have {detector.SIDE} rows of {detector.SIDE} numbers")
    if any(not 0 <= light <= 1 for row in frame for light in row):
        raise ValueError("brightness must be 0..1")
    return frame


class Handler(http.server.BaseHTTPRequestHandler):
    """Detects helmets with the big model, which `main` sets."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    model = None

    def do_GET(self):
        """GET /healthz."""
        if self.path == "/healthz":
            self.answer(200, {"status": "ok"})
        else:
            self.answer(404, {"error": "not found; this worker serves /healthz"})

    def do_POST(self):
        """POST /<service>/predict."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != f"/{SERVICE}/predict":
            self.answer(404, {"error": f"this worker serves /{SERVICE}/predict"})
            return
        try:
            frames = [checked(frame) for frame in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError) as error:
            self.answer(400, {"error": str(error)})
            return
        boxes = [detector.detect(frame, self.model, NMS_THRESHOLD) for frame in frames]
        self.answer(200, {"result": boxes})

    def answer(self, status, content):
        """Send one JSON document."""
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Do not log requests."""


def main():
    """Serve until SIGTERM."""
    stop = stop_event()
    Handler.model = detector.load(setting("MODEL_URL"))
    address = setting("BIG_MODEL_BIND_IP", "0.0.0.0"), int(setting("BIG_MODEL_BIND_PORT", "5000"))
    server = http.server.ThreadingHTTPServer(address, Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"cloud worker of service {SERVICE} listens on {address[0]}:{address[1]}", flush=True)
    stop.wait()
    server.shutdown()


if __name__ == "__main__":
    main()
