"""The books of one request with several choices."""

from __future__ import annotations

from prism_ray.engine.base import Finished, PrefillEnded, PrefillStarted
from prism_ray.model import Outcome
from prism_ray.serving.held import Choice, Held


def held(count: int = 3) -> Held:
    made = Held(("e", "r", 2), 40, 0.0)
    made.expect(count)
    return made


def finish(choice: Choice, outcome: Outcome = Outcome.FINISHED, output: int = 4) -> bool:
    cached = 10 if choice.index == 0 else 99
    event = Finished(choice.engine_id, 3.0, outcome, 100, cached, output)
    return choice.held.choice_finished(choice, event)


class TestHeld:
    def test_every_choice_has_an_id_of_its_own(self) -> None:
        made = held()
        ids = {made.new_choice().engine_id for _ in range(3)} | {held().new_choice().engine_id}
        assert len(ids) == 4
        assert all(len(i) == 32 for i in ids)

    def test_only_the_pioneers_prefill_counts_and_only_once(self) -> None:
        made = held()
        first, second = made.new_choice(), made.new_choice()
        assert not made.prefill_started(second, PrefillStarted(second.engine_id, 1.0, 100, 99))
        assert made.prefill_started(first, PrefillStarted(first.engine_id, 1.5, 100, 10))
        assert not made.prefill_ended(second, PrefillEnded(second.engine_id, 2.0))
        assert not made.pioneered.is_set()
        assert made.prefill_ended(first, PrefillEnded(first.engine_id, 2.5))
        assert not made.prefill_ended(first, PrefillEnded(first.engine_id, 2.6))
        assert (made.prefill_started_s, made.prefill_ended_s) == (1.5, 2.5)
        assert made.pioneered.is_set()
        assert made.in_flight().prefilled

    def test_it_is_gone_when_all_choices_are(self) -> None:
        made = held(2)
        first = made.new_choice()
        assert not finish(first), "the second is still to come"
        second = made.new_choice()
        assert not made.gone.is_set()
        assert finish(second)
        completion = made.completion()
        assert completion is not None
        assert (completion.request_id, completion.attempt) == ("r", 2)
        assert (completion.prompt_tokens, completion.cached_tokens) == (100, 10)
        assert completion.output_tokens == 8
        assert completion.outcome is Outcome.FINISHED

    def test_one_that_leaves_early_awaits_only_what_was_submitted(self) -> None:
        made = held(3)
        first = made.new_choice()
        made.expect_no_more()
        assert not made.gone.is_set()
        assert finish(first, Outcome.ABORTED)
        completion = made.completion()
        assert completion is not None
        assert completion.outcome is Outcome.ABORTED

    def test_what_the_engine_never_took_leaves_at_once(self) -> None:
        made = held(1)
        made.drop(made.new_choice())
        made.expect_no_more()
        assert made.gone.is_set()
        assert made.completion() is None

    def test_a_pioneer_that_dies_lets_nobody_wait_for_it(self) -> None:
        made = held(2)
        finish(made.new_choice(), Outcome.FAILED)
        assert made.pioneered.is_set()
        assert made.prefill_ended_s is None

    def test_the_worst_outcome_of_a_choice_is_the_requests(self) -> None:
        made = held(3)
        for outcome in (Outcome.FINISHED, Outcome.FAILED, Outcome.ABORTED):
            finish(made.new_choice(), outcome)
        completion = made.completion()
        assert completion is not None
        assert completion.outcome is Outcome.FAILED
