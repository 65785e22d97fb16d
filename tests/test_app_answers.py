"""Exploring a run of a question, without a browser: its stored answers with their pictures, checked and attacked."""

import shutil

import pytest

from test_ask import asked
from ucan.app.answers import AnswersSession, answer_panel, attack_panel, header, input_panel, verdict_panel
from ucan.audit import Budget
from ucan.certificate import Abstention
from ucan.errors import InvalidInput, ModelError
from ucan.results.answers import AnswerStore
from ucan.rounding import floor_digits

QUICK = Budget(steps=4, draws=4, check=300)
# Of each task: what its panel must show.
SHOWN = {
    "regression": ["size of changes, before Σ", "<rect", "the dashed one the target", "<td>163.", "at most"],
    "boxes": ["stroke-dasharray", "the box stays between", "whole multiples of 1/255"],
    "top-k": ["stays among the first 3 below a size of", "<b>Class 0 stays among the first 3</b>"],
    "confidence": ['class="line"', "the level of 0.6"],
    "labels": ["<td>present</td>", "<td>absent</td>"],
    "segmentation": ["certified; grey: left open", "data:image/png", "% of the pixels certified"],
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A session on each task's run of two inputs, made once."""
    made = {}

    def of(task):
        if task not in made:
            folder = tmp_path_factory.mktemp(task) / "run"
            assert asked(task, folder, "--max", 2).exit_code == 0
            made[task] = AnswersSession.open(folder)
        return made[task]

    return of


@pytest.mark.parametrize("task", SHOWN)
def test_the_stored_answer_is_shown_with_its_picture(task, opened):
    session = opened(task)
    answer, text = session.answer(0), " ".join(answer_panel(session, 0).unescape().split())
    assert not answer.abstained and "Scope pipeline." in text and "≥ 99.9 %" in text
    assert all(words in text for words in SHOWN[task]), text
    assert f"radius of {floor_digits(answer.radius, 4)}" in text
    assert task.replace("boxes", "regression") in header(session) and session.notes == ()
    assert ("<img" in input_panel(session, 0)) == (task not in ("regression", "labels"))


def test_a_stopped_answer_says_where_it_was_looked_at(tmp_path):
    assert asked("top-k", tmp_path / "run", "--max", 1, "--stop", 0.1).exit_code == 0
    session = AnswersSession.open(tmp_path / "run")
    assert "looked at after 75, 150, 300; stopped when" in " ".join(answer_panel(session, 0).split())


def test_an_answer_is_checked_and_attacked(opened):
    session = opened("labels")
    assert "The claim stands" in verdict_panel(session.check(0))
    held, beyond = (session.attack(0, multiple, QUICK) for multiple in (0.9, 3.0))
    assert not held.broken and "As it must" in attack_panel(held)
    assert ("Beyond the region nothing was claimed" in attack_panel(beyond)) == beyond.broken


def test_an_abstention_claims_nothing(opened, tmp_path):
    words = ["--confidence", 0.99]
    assert asked("confidence", tmp_path / "run", "--max", 3, *words).exit_code == 0
    session = AnswersSession.open(tmp_path / "run")
    number = next(i for i in session.numbers if isinstance(session.answer(i), Abstention))
    text = answer_panel(session, number)
    assert "Nothing is claimed: the lower bound" in text and "Scope" not in text
    with pytest.raises(InvalidInput, match="nothing to check"):
        session.check(number)


def test_inputs_are_found_by_number_and_others_are_refused(opened):
    session = opened("labels")
    assert session.number_of(1) == session.number_of(" 1 ") == session.number_of("input 1") == 1
    with pytest.raises(InvalidInput, match="no answer about '<b>'"):
        session.number_of("<b>")


def test_without_its_model_a_run_is_still_shown(opened, tmp_path):
    folder = tmp_path / "moved"
    shutil.copytree(opened("labels").folder, folder)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("ucan.models.examples:breast_cancer", "nowhere:model"))
    session = AnswersSession.open(folder)
    assert "The run's model is not here" in session.notes[0] and "Labels" in answer_panel(session, 0)
    with pytest.raises(InvalidInput, match="not here"):
        session.attack(0, 0.9)
    with pytest.raises(ModelError, match="elsewhere"):
        AnswersSession.open(folder, model="elsewhere:model")


def test_a_run_without_answers_says_what_to_do(opened, tmp_path):
    folder = tmp_path / "empty"
    shutil.copytree(opened("labels").folder, folder)
    with AnswerStore.open(folder) as store:
        config = store.config
    shutil.rmtree(folder)
    AnswerStore.create(folder, config).close()
    with pytest.raises(InvalidInput, match="no answers yet"):
        AnswersSession.open(folder)
