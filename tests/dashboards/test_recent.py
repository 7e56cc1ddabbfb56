from __future__ import annotations

from thunder_tune.dashboards.recent import KEPT, Recent


def test_a_value_is_made_again_for_another_version_or_when_old():
    now, made = [0.0], []
    recent: Recent[int] = Recent(2.0, clock=lambda: now[0])

    def get(version: int) -> int:
        return recent.get("key", version, lambda: made.append(version) or len(made))

    assert [get(1), get(1), get(2), get(2)] == [1, 1, 2, 2]
    now[0] = 1.9
    assert get(2) == 2
    now[0] = 2.1
    assert get(2) == 3


def test_few_values_are_kept():
    recent: Recent[int] = Recent(1e9)
    for key in range(KEPT + 1):
        recent.get(key, 0, lambda key=key: key)
    assert recent.get(KEPT, 0, lambda: -1) == KEPT
    assert recent.get(0, 0, lambda: -1) == -1
