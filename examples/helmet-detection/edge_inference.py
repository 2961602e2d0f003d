"""The edge worker: detects helmets on synthetic frames and sends those that IBT classifies as hard to the cloud worker."""

import http.client
import json
import time
import traceback
import urllib.request

import detector
from worker import Reporter, setting, stop_event


class Cloud:
    """Client of the cloud worker. Pauses calls after three consecutive failures."""

    TIMEOUT = 2.0
    PAUSE = 5.0

    def __init__(self):
        """Take the address from the environment. Without one, only the edge model is used."""
        base = setting("BIG_MODEL_URL", "")
        if not base and setting("BIG_MODEL_IP", ""):
            base = f"http://{setting('BIG_MODEL_IP')}:{setting('BIG_MODEL_PORT', '5000')}"
        self.url = f"{base.rstrip('/')}/{setting('SERVICE_NAME')}/predict" if base else None
        # No proxy: the cloud worker is reached directly.
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.failures = 0
        self.next_try = 0.0

    def detect(self, frame):
        """Return the cloud worker's boxes, or None."""
        if not self.url or time.monotonic() < self.next_try:
            return None
        request = urllib.request.Request(
            self.url,
            json.dumps({"data": [frame]}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with self.opener.open(request, timeout=self.TIMEOUT) as response:
                (boxes,) = json.load(response)["result"]
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            print(f"using the edge model's answer: {error}", flush=True)
            self.failures += 1
            if self.failures >= 3:
                self.next_try = time.monotonic() + self.PAUSE
            return None
        self.failures = 0
        return boxes


def work(stop, reporter):
    """Infer frames until `stop` is set."""
    model = detector.load(setting("MODEL_URL"))
    nms_threshold = float(setting("NMS_THRESHOLD", "0.6"))
    pause = 1.0 / float(setting("RATE", "10"))
    if setting("HEM_NAME", "IBT") != "IBT":
        raise ValueError(f"HEM_NAME is {setting('HEM_NAME')}: this worker supports only IBT")
    rule, cloud = detector.IBT(setting("HEM_PARAMETERS", "[]")), Cloud()
    number = helmets = 0
    while not stop.wait(pause):
        frame, _ = detector.draw(number)
        boxes = detector.detect(frame, model, nms_threshold)
        answer = cloud.detect(frame) if rule.is_hard(boxes) else None
        reporter.count(uploaded=answer is not None)
        helmets += len(boxes if answer is None else answer)
        number += 1
        if number % 100 == 0:
            print(f"{number} frames, {helmets} helmets, {reporter.hard} frames answered by the cloud", flush=True)


def main():
    """Run until SIGTERM. Report `failed` on an error."""
    stop, reporter, status = stop_event(), Reporter(), "running"
    try:
        work(stop, reporter)
    except Exception:  # every error is reported before this worker exits
        traceback.print_exc()
        status = "failed"
    reporter.finish(status)
    return 1 if status == "failed" else 0


if __name__ == "__main__":
    raise SystemExit(main())
