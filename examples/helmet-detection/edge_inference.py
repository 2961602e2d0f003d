"""The edge worker: detects helmets on synthetic frames; those that the rule classifies as hard go to the cloud."""

import detector
from neptune_worker import Worker


def main():
    """Run until SIGTERM."""
    with Worker() as worker:
        model = detector.load(worker.model_path)
        nms_threshold = float(worker.parameters.get("nms_threshold", "0.6"))
        pause = 1.0 / float(worker.parameters.get("rate", "10"))
        number = helmets = answered = 0
        while not worker.wait(pause):
            frame, _ = detector.draw(number)
            boxes = detector.detect(frame, model, nms_threshold)
            answer = worker.infer(frame, boxes, boxes=boxes)
            number, helmets = number + 1, helmets + len(answer.result)
            answered += answer.source == "cloud"
            if number % 100 == 0:
                print(f"{number} frames, {helmets} helmets, {answered} frames answered by the cloud", flush=True)


if __name__ == "__main__":
    main()
