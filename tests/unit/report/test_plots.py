"""Where labels are put."""

from __future__ import annotations

import pytest

from perfgate.report.plots import LEFT, RIGHT, VALUE_WIDTH, WIDTH, _room_beside


@pytest.mark.parametrize("left", [LEFT, LEFT + 40, LEFT + 200])
@pytest.mark.parametrize("right", [LEFT + 210, WIDTH - RIGHT - 40, WIDTH - RIGHT])
def test_the_change_stays_inside_the_picture_and_clear_of_the_rows_name(left: float, right: float) -> None:
    for estimate in (left, (left + right) / 2, right):
        place, anchor = _room_beside(left, right, estimate)
        start, end = (place, place + VALUE_WIDTH - 8) if anchor == "start" else (place - VALUE_WIDTH + 8, place)
        assert start >= LEFT
        assert end <= WIDTH
