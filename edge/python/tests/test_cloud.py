"""Calls of the cloud worker over a real connection."""

import threading
import time

import pytest
from neptune_worker.cloud import CALL_SECONDS, Cloud
from neptune_worker.settings import Address


def client(cloud, seconds=0.3):
    return Cloud(Address("127.0.0.1", cloud.server_port), "/demo/predict", seconds)


def test_answer_is_returned(cloud):
    assert client(cloud).ask([[0.5]]) == "big"
    assert cloud.requests == [("/demo/predict", {"data": [[0.5]]})]


def test_calls_without_a_pause_are_all_answered(cloud):
    edge = client(cloud, 5)
    assert [edge.ask(number) for number in range(300)] == ["big"] * 300


def test_whole_call_has_five_seconds():
    assert CALL_SECONDS == 5.0


@pytest.mark.parametrize("behaviour", ["silent", "slow"])
def test_whole_call_is_limited_and_its_thread_ends(cloud, behaviour):
    cloud.behaviour = behaviour
    edge = client(cloud)
    began = time.monotonic()
    assert edge.ask(1) is None
    assert 0.25 < time.monotonic() - began < 2
    (call,) = edge._calls
    call.join(2)
    assert not call.is_alive()


@pytest.mark.parametrize("behaviour", ["error", "not JSON"])
def test_failing_cloud_is_called_once_per_pause(cloud, behaviour):
    cloud.behaviour = behaviour
    edge = client(cloud, 5)
    assert [edge.ask(1) for _ in range(20)] == [None] * 20
    assert len(cloud.requests) == 1
    cloud.behaviour = "answer"
    edge.breaker._next_call = 0.0
    assert edge.ask(1) == "big"
    assert edge.breaker.failures == 0


def test_stop_gives_up_the_call_in_progress_and_permits_no_other(cloud):
    cloud.behaviour = "silent"
    edge = client(cloud, 5)
    threading.Timer(0.2, edge.stop).start()
    began = time.monotonic()
    assert edge.ask(1) is None
    assert time.monotonic() - began < 2
    assert edge.ask(1) is None
    assert len(cloud.requests) == 1


def test_refused_connection_is_no_answer(cloud):
    edge = client(cloud)
    cloud.stop()
    assert edge.ask(1) is None
    assert edge.breaker.failures == 1


def test_threads_probe_a_failing_cloud_once(cloud):
    cloud.behaviour = "error"
    edge = client(cloud, 5)
    edge.ask(1)
    edge.breaker._next_call = 0.0
    threads = [threading.Thread(target=edge.ask, args=(1,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cloud.requests) == 2


def test_payload_that_is_not_json_is_an_error_of_the_program(cloud):
    with pytest.raises(TypeError):
        client(cloud).ask({1, 2})
