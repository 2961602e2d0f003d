"""The edge worker: detects helmets on synthetic frames and sends those that IBT classifies as hard to the cloud worker."""

import traceback

import detector
from cloud import Cloud
from worker import Reporter, setting, stop_event


def cloud_url():
    """Return the URL of the cloud worker's predict path, or None without an address."""
    base = setting("BIG_MODEL_URL", "")
    if not base and setting("BIG_MODEL_IP", ""):
        base = f"http://{setting('BIG_MODEL_IP')}:{setting('BIG_MODEL_PORT', '5000')}"
    return f"{base.rstrip('/')}/{setting('SERVICE_NAME')}/predict" if base else None


def work(stop, reporter):
    """Infer frames until `stop` is set."""
    model = detector.load(setting("MODEL_URL"))
    nms_threshold = float(setting("NMS_THRESHOLD", "0.6"))
    pause = 1.0 / float(setting("RATE", "10"))
    if setting("HEM_NAME", "IBT") != "IBT":
        raise ValueError(f"HEM_NAME is {setting('HEM_NAME')}: this worker supports only IBT")
    rule, cloud = detector.IBT(setting("HEM_PARAMETERS", "[]")), Cloud(cloud_url())
    number = helmets = 0
    while not stop.wait(pause):
        frame, _ = detector.draw(number)
        boxes = detector.detect(frame, model, nms_threshold)
        is_hard = rule.is_hard(boxes)
        answer = cloud.detect(frame) if is_hard else None
        reporter.count(is_hard, is_answered=answer is not None)
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
