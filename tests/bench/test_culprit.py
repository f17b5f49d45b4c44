"""Who is to blame, of what the ranks say of themselves: stories by hand, no process."""

import pytest
from error_form import error_text

from torchcoll.bench.culprit import SAME, Why, Witness, find, odd_one, other_buffers, other_world


def names(ranks):
    return "+".join(map(str, ranks))


def word(place="collective", steps=7, calls=20, how="waits", **more):
    return {
        **{"place": place, "text": "f, x.py:1", "how": how, "steps": steps, "calls": calls},
        **{"doing": f"step {steps}", "subgroup": 0, **more},
    }


WAITS = word()
STORIES = [
    # One sleeps, spins or is stuck in code of its own; behind or not.
    ([WAITS, WAITS, word("code", how="sleeps")],
     "2 is in user code (f, x.py:1: sleeps), 0+1 wait in the collective"),
    ([word("code", steps=9, how="spins"), WAITS],
     "0 is in user code (f, x.py:1: spins), 1 waits in the collective"),
    ([word("code", how=""), word("exchange"), WAITS],
     "0 is in user code (f, x.py:1), 1 waits in the control exchange, 2 waits in the collective"),
    # Somebody else's code before torchcoll's, which may be busy with what it ought to do.
    ([word("busy"), word("code"), WAITS],
     "1 is in user code (f, x.py:1), 2 waits in the collective"),
    ([word("busy"), WAITS, WAITS], "0 is in torchcoll (f, x.py:1), 1+2 wait in the collective"),
    # A skipped call: past the others, with fewer calls of the library, in the exchange...
    ([WAITS, word("exchange", steps=8, calls=19), WAITS],
     "1 left out a call of the library: past it, with fewer calls made; "
     "0+2 wait in the collective"),
    # ... or in the next call, which then has the number of the one that it left out.
    ([WAITS, word(steps=8, calls=20), WAITS],
     "1 left out a call of the library: past it, with fewer calls made; "
     "0+2 wait in the collective"),
    # One too many: the others are past it with no more calls.
    ([word(steps=8), word(steps=7), word(steps=8)],
     "1 made a call of the library too many; 0+2 are past it"),
    # Of two nobody can tell.
    ([word(steps=8), word(steps=7)],
     "0 left out a call of the library: past it, with fewer calls made, or 1 made a call of the "
     "library too many"),
    # In order: the one that is further has made the next call too.
    ([word(steps=8, calls=21), WAITS, word(steps=8, calls=21)], "behind: 1, in step 7"),
    # Sub-groups count for themselves.
    ([word(steps=8, calls=3, subgroup=0), word(steps=7, calls=20, subgroup=1)],
     "behind: 1, in step 7"),
    # A backend that counts no calls.
    ([word(calls=None), word("exchange", steps=8, calls=None)], "behind: 0, in step 7"),
    # Rank 0 waits for a word that its owner believes to have given.
    ([word("exchange", lacks=[2]), word("exchange"), word("exchange")],
     "2 did not give its word to rank 0"),
    # The same place in Python, and the kernel sees another thing.
    ([WAITS, word(how="spins"), WAITS], "1 spins in the collective, 0+2 wait in the collective"),
    ([word(text="all_reduce"), word(text="broadcast"), word(text="all_reduce")],
     "1 is in broadcast, 0+2 are in all_reduce"),
    # Libraries that poll: all of them spin.
    ([word(how="spins"), word(how="spins"), word(how="spins")], SAME),
    ([WAITS, WAITS, WAITS], SAME),
    ([word("exchange"), WAITS],
     "0 waits in the control exchange, 1 waits in the collective: cannot tell who is late"),
    ([{"steps": 1, "doing": "a"}, {"steps": 1, "doing": "a"}], SAME),  # nothing could be seen
]  # fmt: skip


@pytest.mark.parametrize(("words", "text"), STORIES)
def test_stories(words, text):
    assert odd_one(words, names) == text


def gave(*last):
    return {"last": [*last]}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        # Who received it is lost. Others gave the same, or say nothing, or cannot know.
        ([gave("a", "a", "b"), gave("a", "a", "a"), None], "0 gave another buffer (b, before a)"),
        ([None, gave("a", "a", "b"), {}], "1 gave another buffer (b, before a)"),
        ([{}, gave("a", "a", "b"), {"last": []}], "1 gave another buffer (b, before a)"),
        # Roots give what others do not, each the same again.
        ([gave("a", "a", "a"), gave("c", "c", "c"), None], ""),
        # All change: somebody's loop wants it so.
        ([gave("a", "a", "b"), gave("a", "a", "b"), None], ""),
        # One that has never given the same twice, or not yet twice.
        ([gave("a", "b", "c"), gave("a", "a", "a")], ""),
        ([gave("b"), gave("a"), None], ""),
        ([None, {}, None], ""),
    ],
)
def test_who_gave_another_buffer(words, text):
    assert other_buffers(words, names) == text


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([3, 4, 3, None], "1 counts 4 ranks, 0+2 count 3 ranks"),
        ([4, 3, None], "0 counts 4 ranks, 1 counts 3 ranks"),
        ([3, 3, None], ""),
        ([3, None, None], ""),
    ],
)
def test_who_counts_other_ranks(counts, text):
    words = [{"ranks": count} if count else None for count in counts]
    assert other_world(words, names) == text


STUCK = {"place": "collective", "text": "all_reduce", "how": "waits", "doing": "step 7"}


def status(**more):
    """Of a rank that waits in the same call as the others."""
    return {**STUCK, "steps": 7, **more}


def found(words, symptom=None, kind="lost_rank", **view):
    """Text, kind and story of what rank 0 finds, which was in ``warm-up``."""
    culprit = find(Witness(0, symptom, kind, 60.0, **view), words, names)
    return culprit.text("warm-up", names, "SEEN; "), culprit.kind, culprit.story(names)


@pytest.mark.parametrize(
    ("words", "view", "text", "kind", "story"),
    [
        # Patience ended, and all of them answer.
        ([status(hang="no progress for 60 s"), status()], {"symptom": "no progress for 60 s"},
         f"no progress for 60 s in warm-up; {SAME}", "lost_rank", "no progress for 60 s"),
        # Another rank's patience ended first: its hang is the news, and no error that came of it.
        ([status(), status(hang="no progress for 60 s", cause="lost it")], {},
         f"no progress for 60 s in warm-up; {SAME}", "hang", "no progress for 60 s"),
        ([status(), status()], {}, f"another rank reports trouble in warm-up; {SAME}",
         "lost_rank", "another rank reports trouble"),
        # Who waits for rank 0 in an exchange, while rank 0 waits itself.
        ([status(), status()],
         {"symptom": "no word from rank 1 within 60 s", "kind": "hang", "waited": True},
         f"no progress for 60 s in warm-up; {SAME}", "hang", "no progress for 60 s"),
        ([status(), status(hang="no word from rank 0 within 60 s", waited=True)], {},
         f"no progress for 60 s in warm-up; {SAME}", "hang", "no progress for 60 s"),
        # What a rank met itself; the first to raise the alarm before others.
        ([status(), status(cause="ValueError: x")], {},
         "1: ValueError: x in warm-up", "lost_rank", "1: ValueError: x"),
        ([status(cause="a"), status(), status(cause="b")], {"first": 2},
         "2: b in warm-up", "lost_rank", "2: b"),
        ([status(cause="a"), status(), status(cause="b")], {"first": None},
         "0: a in warm-up", "lost_rank", "0: a"),
        ([status(), status(signal="SIGINT")], {}, "1: SIGINT in warm-up", "lost_rank",
         "1: SIGINT"),
        # No answer: a connection that was closed is the consequence of that.
        ([status(cause="Connection closed by peer"), None, status()], {"here": [0, 1, 2]},
         "lost 1 in warm-up (no answer; SEEN; 0: Connection closed by peer)", "lost_rank",
         "lost 1"),
        # A busy rank that does not answer in time is no news beside an error, one that is gone is.
        ([status(cause="ValueError: x"), None], {"here": [0, 1]},
         "0: ValueError: x in warm-up", "lost_rank", "0: ValueError: x"),
        ([status(cause="ValueError: x"), None], {"here": [0, 1], "gone": [1]},
         "lost 1 in warm-up (no answer; SEEN; 0: ValueError: x)", "lost_rank", "lost 1"),
        # Of a rank that was not asked nothing is said.
        ([status(), None, {}], {"here": [0, 1], "gone": [1]},
         "lost 1 in warm-up (no answer; SEEN; another rank reports trouble)", "lost_rank",
         "lost 1"),
        # One that hears of nobody and is alone on its host; of two ranks either is lost.
        ([status(), None, None], {"here": [0]},
         "0 is cut off from all others, or lost 1+2 in warm-up "
         "(no answer; SEEN; another rank reports trouble)", "lost_rank",
         "0 is cut off from all others, or lost 1+2"),
        ([status(), None], {"here": [0]},
         "lost 1 in warm-up (no answer; SEEN; another rank reports trouble)", "lost_rank",
         "lost 1"),
        # A process that stood still: it hears of the others' patience.
        ([status(still_s=80), status(hang="no progress for 60 s")],
         {"symptom": "broken pipe", "kind": "hang", "still": True},
         "0 stood still for 80 s in warm-up; no progress for 60 s. A stopped process, swapping, a "
         "paused machine or native code with Python's lock does that", "hang",
         "0 stood still for 80 s"),
        ([status(), status(still_s=80)], {},
         "1 stood still for 80 s in warm-up. A stopped process, swapping, a paused machine or "
         "native code with Python's lock does that", "lost_rank", "1 stood still for 80 s"),
        # An error of one that did not stand still explains more.
        ([status(cause="ValueError: x"), status(still_s=80)], {},
         "0: ValueError: x in warm-up", "lost_rank", "0: ValueError: x"),
        # Another buffer: who received it is lost.
        ([status(last=["a", "a", "b"]), None], {"here": [0, 1], "gone": [1]},
         "0 gave another buffer (b, before a) in warm-up (lost 1, another rank reports trouble)",
         "lost_rank", "0 gave another buffer (b, before a)"),
        # More ranks than there are.
        ([status(ranks=2), status(ranks=2), None], {}, "lost 2 in warm-up "
         "(no answer; SEEN; another rank reports trouble)", "lost_rank", "lost 2"),
        ([status(ranks=3), status(ranks=2), None], {},
         "another rank reports trouble in warm-up; 0 counts 3 ranks, 1 counts 2 ranks. Start all "
         "ranks with the same number of ranks", "lost_rank", "another rank reports trouble"),
        # A value that no rank has written, and a mistake that one rank met: the text alone.
        ([status(), {"damaged": error_text("key k", "x")}], {}, error_text("key k",
            "x"), "store", error_text("key k", "x")),
        ([status(), status(cause=error_text("--size", "x"), code=2), None], {}, error_text("--size",
            "x"), "error",
         error_text("--size", "x")),
    ],
)  # fmt: skip
def test_what_all_ranks_say_comes_to_one_culprit(words, view, text, kind, story):
    assert found(words, **view) == (text, kind, story)


def test_a_culprit_has_its_parts():
    witness = Witness(0, None, "lost_rank", 60.0, here=[0])
    culprit = find(witness, [status(), None, None], names)
    assert (culprit.why, culprit.lost, culprit.alone) == (Why.LOST, [1, 2], 0)
    mistake = find(witness, [status(), status(cause=error_text("--size", "x"), code=2)], names)
    assert (mistake.why, mistake.code) == (Why.MISTAKE, 2)
