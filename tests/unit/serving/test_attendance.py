from __future__ import annotations

from prism_ray.serving.attendance import Attendance


def test_an_ingress_that_has_learned_of_no_replica_has_no_say() -> None:
    attendance = Attendance()
    assert attendance.runs("r")
    attendance.heard("new", 0.0, frozenset())
    assert attendance.runs("r")
    attendance.heard("old", 0.0, frozenset({"s"}))
    assert not attendance.runs("r")
    assert attendance.runs("s")


def test_a_silent_ingress_loses_its_say_and_an_excused_one_does_not() -> None:
    attendance = Attendance(silent_s=5.0)
    attendance.heard("i", 0.0, frozenset({"s"}))
    attendance.excuse(3.0)
    assert attendance.leave_silent(7.9) == []
    assert attendance.leave_silent(8.0) == ["i"]
    assert len(attendance) == 0
    assert attendance.runs("r")


def test_an_unnamed_ingress_is_not_kept() -> None:
    attendance = Attendance()
    attendance.heard("", 0.0, frozenset({"s"}))
    assert len(attendance) == 0
    assert attendance.runs("r")
