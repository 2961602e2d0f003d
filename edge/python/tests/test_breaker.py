"""The breaker in simulated time."""

from neptune_worker.breaker import Breaker


def fail(breaker, now):
    permit = breaker.permit(now)
    assert permit is not None
    breaker.failed(permit, now)


def pause(breaker, now):
    """Return the seconds until the next call, to a tenth."""
    tenths = 0
    while breaker.permit(now + tenths / 10) is None:
        tenths += 1
    return tenths / 10


def test_pauses_double_from_1_to_30_seconds():
    breaker, now, pauses = Breaker(), 100.0, []
    for _ in range(8):
        fail(breaker, now)
        next_call = breaker._next_call
        pauses.append(next_call - now)
        now = next_call
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_one_call_is_permitted_after_the_pause_and_its_success_permits_all():
    breaker = Breaker()
    fail(breaker, 0.0)
    assert breaker.permit(0.99) is None
    probe = breaker.permit(1.0)
    assert probe is not None
    assert breaker.permit(500.0) is None
    breaker.succeeded(probe)
    assert [breaker.permit(1.0) is not None for _ in range(3)] == [True] * 3


def test_calls_that_fail_together_count_once():
    breaker = Breaker()
    permits = [breaker.permit(0.0) for _ in range(50)]
    for permit in permits:
        breaker.failed(permit, 0.0)
    assert breaker.failures == 1
    assert pause(breaker, 0.0) == 1.0


def test_late_success_of_an_earlier_call_does_not_end_the_pause():
    breaker = Breaker()
    late = breaker.permit(0.0)
    fail(breaker, 0.0)
    breaker.succeeded(late)
    assert breaker.permit(0.5) is None
