"""Questions from the command line over data that come with the package: stored, resumed, verified, attacked."""

import json
import shlex
import shutil
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import ucan
from ucan import backends
from ucan.audit.answers import attack_answer
from ucan.cli import app
from ucan.config import read_config
from ucan.data import load
from ucan.errors import InvalidInput, StoreError
from ucan.models import examples
from ucan.report.answers import command, read_asked
from ucan.results.answers import AnswerStore
from ucan.runs.asked import is_ask_run
from ucan.verify_answer import verify_answer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments"))

import questions_audit  # noqa: E402
from questions_audit import QUICK, fault, inputs  # noqa: E402

EXAMPLES = "ucan.models.examples:"
# Each task: the question with its options, a model, data, and what the summary must name.
TASKS = {
    "regression": (["regression", "--radius", "0.1,0.2"], "diabetes", "diabetes", "median_width"),
    "backwards": (["regression", "--within", "30"], "diabetes", "diabetes", "median_radius"),
    "boxes": (["regression", "--radius", "0.1", "--scale", "0.1"], "boxes", "shapes", "median_width"),
    "top-k": (["top-k", "--top", "3", "--scale", "0.5"], "digits", "digits", "label_among_first"),
    "confidence": (["confidence", "--confidence", "0.6"], "digits", "digits", "correct"),
    "labels": (["labels", "--radius", "0.2"], "breast_cancer", "breast-cancer", "certified_and_correct"),
    "segmentation": (["segmentation", "--radius", "0.2"], "shapes", "shapes", "certified_and_correct"),
}


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def asked(task, out, *more):
    words, model, data, _ = TASKS[task]
    return run("ask", *words, "--model", EXAMPLES + model, "--data", data, "-o", out, "--n", 300, "-q", *more)


def records(folder):
    with AnswerStore.open(folder) as store:
        return {idx: answer.to_dict() for idx, answer in store.answers()}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The folder of each task's run: one input asked about, then two more by the same command; made once."""
    made = {}

    def of(task):
        if task not in made:
            folder = tmp_path_factory.mktemp(task) / "run"
            assert asked(task, folder, "--max", 1).exit_code == 0
            made[task] = folder, asked(task, folder, "--max", 3, "--json")
        return made[task]

    return of


@pytest.mark.parametrize("task", TASKS)
def test_each_task_is_stored_and_resumed(task, begun):
    folder, done = begun(task)
    summary = json.loads(done.stdout)
    assert summary["inputs"] == 3 and summary[TASKS[task][3]] is not None and summary["scope"] == "pipeline"
    assert len(records(folder)) == 3 and is_ask_run(folder)


@pytest.mark.parametrize("task", ["backwards", "labels"])
def test_a_resumed_run_has_the_answers_of_one_that_was_not_interrupted(task, begun, tmp_path):
    told = asked(task, tmp_path / "whole", "--max", 3)
    assert "Scope pipeline" in told.stdout and records(begun(task)[0]) == records(tmp_path / "whole")


def test_another_config_is_refused_with_its_differences(tmp_path):
    asked("labels", tmp_path / "run", "--max", 1)
    with pytest.raises(InvalidInput, match=r"asked\.radius: the run has 0\.2, asked for 0\.3"):
        run("ask", "labels", "--radius", 0.3, "--model", EXAMPLES + "breast_cancer", "--data", "breast-cancer",
            "-o", tmp_path / "run", "--n", 300, "-q")  # fmt: skip
    with pytest.raises(InvalidInput, match="another kind"):
        run("certify", "--model", EXAMPLES + "digits", "--data", "digits", "-o", tmp_path / "run", "-q")


def test_a_run_takes_no_file_and_no_folder_of_something_else(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("kept")
    for name, message in {"notes": "is not a run folder (it holds mine.txt)", "notes/mine.txt": "is a file"}.items():
        with pytest.raises(InvalidInput) as error:
            AnswerStore.create(tmp_path / name, {"kind": "ask"})
        assert message in str(error.value)
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["mine.txt"]


def test_a_reader_does_not_write_and_needs_no_lock_on_an_archive(begun, tmp_path, monkeypatch):
    folder, _ = begun("labels")
    with (
        AnswerStore.open(folder) as store,
        pytest.raises(InvalidInput, match=r"opened read-only: use AnswerStore\.create"),
    ):
        store.add(9, store.answer(0), 1.0)
    archive = tmp_path / "archive"
    archive.mkdir()
    for name in ("config.toml", "answers.sqlite"):
        shutil.copy(folder / name, archive)
    monkeypatch.setattr("ucan.results.database.os.access", lambda *_: False)  # as on read-only storage
    assert records(archive) == records(folder)
    assert {path.name for path in archive.iterdir()} == {"config.toml", "answers.sqlite"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fortune"], "the question must be"),
        (["top-k"], "needs --top"),
        (["top-k", "--top", "2", "--radius", "1"], "not an option of top-k"),
        (["labels", "--radius", "1,2"], "takes one number"),
        (["regression", "--radius", "x"], "separated by commas"),
        (["regression", "--radius", "1", "--range", "0"], "two numbers"),
        (["regression"], "either radius"),
    ],
)
def test_options_of_other_questions_are_refused(words, message, tmp_path):
    with pytest.raises(InvalidInput, match=message):
        run("ask", *words, "--model", EXAMPLES + "digits", "--data", "digits", "-o", tmp_path / "run")


@pytest.mark.parametrize("task", ["regression", "labels", "segmentation"])
def test_a_trained_run_answers_with_one_class(task, tmp_path):
    ended = ROOT / "tests" / "fixtures" / "version-0.1" / "isotropic"
    (tmp_path / "net").mkdir()
    for name in ("config.toml", "weights.safetensors"):
        (tmp_path / "net" / name).write_bytes((ended / name).read_bytes())
    (tmp_path / "net" / "checkpoint.pt").touch()  # as training leaves it
    with pytest.raises(
        InvalidInput, match=f"is a trained run, .* top-k or confidence .* for {task} give another model"
    ):
        run("ask", task, "--radius", "0.2", "--model", tmp_path / "net", "--data", "digits", "-o", tmp_path / "run")


@pytest.mark.parametrize("words", [("compare", "{}"), ("export", "{}", "-o", "{}.csv")])
def test_commands_about_radii_of_one_class_say_what_the_run_is(words, begun):
    folder, _ = begun("top-k")
    with pytest.raises(StoreError, match=r"is a run of `ucan ask`.*`ucan report` and `ucan explore`"):
        run(*(word.format(folder) for word in words))


def test_answers_are_verified_from_their_files(tmp_path):
    asked("regression", tmp_path / "run", "--max", 2, "--certificates")
    file = tmp_path / "run" / "certificates" / "1.json"
    words = ["verify", file, "--model", EXAMPLES + "diabetes", "--input", "diabetes", "--index", 1, "-q"]
    good = run(*words, "--scale", 0.25, "--replay")
    assert good.exit_code == 0 and "The claim stands" in good.stdout and "ok   replay" in good.stdout
    secret = json.loads(file.read_text())
    secret["evidence"]["seed"] = None
    (tmp_path / "secret.json").write_text(json.dumps(secret))
    unsure = run("verify", tmp_path / "secret.json", *words[2:], "--scale", 0.25, "--replay")
    assert unsure.exit_code == 2 and "not checked replay: its seed is secret" in unsure.stdout
    elsewhere = json.loads(file.read_text())
    elsewhere["evidence"].update(seed=5, device="cuda: another")  # where its seed gives other noise
    (tmp_path / "elsewhere.json").write_text(json.dumps(elsewhere))
    unsure = run("verify", tmp_path / "elsewhere.json", *words[2:], "--scale", 0.25, "--replay")
    assert unsure.exit_code == 2 and "not checked replay: not replayable here: the noise was drawn on" in unsure.stdout
    assert "The claim stands" in unsure.stdout and unsure.stdout.count("not checked replay") == 1
    assert run(*words, "--scale", 0.3).exit_code == 1  # another law
    with pytest.raises(InvalidInput, match="give the noise"):
        run(*words)
    record = json.loads(file.read_text())
    ends = record["ends"]
    for side in ("lowers", "uppers"):
        ends[side]["data"] = [[end + 30 for end in row] for row in ends[side]["data"]]
    ends["value"]["data"] = [value + 30 for value in ends["value"]["data"]]
    record["upper"] = ends["uppers"]["data"][-1]
    for found in ("lower", "votes"):  # what is shown is left as it was; then it is changed as well
        file.write_text(json.dumps(record))
        bad = run(*words, "--scale", 0.25, "--json")
        assert bad.exit_code == 1
        assert [check["name"] for check in json.loads(bad.stdout)["checks"] if not check["passed"]] == [found]
        record["lower"] = record["ends"]["lowers"]["data"][-1]


def test_a_range_that_an_answer_rests_on_is_said_and_can_be_given(tmp_path):
    """A false range gives any radius: whoever verifies says what the outputs are, or nothing is confirmed."""
    words = ["--model", EXAMPLES + "diabetes", "-q"]
    wide = [
        "--radius",
        "0.1,50",
        "--range",
        "-900,900",
        "--n",
        300,
        "--max",
        1,
        "--certificates",
        "-o",
        tmp_path / "run",
    ]
    assert run("ask", "regression", *words, "--data", "diabetes", *wide).exit_code == 0
    file = tmp_path / "run" / "certificates" / "0.json"
    words = ["verify", file, *words, "--input", "diabetes", "--index", 0, "--scale", 0.25]
    unsure = run(*words, "--replay")
    assert unsure.exit_code == 0 and "given that the outputs are from -900 to 900" in unsure.stdout
    assert "not confirmed range: rests on the stated range of the outputs, from -900 to 900" in unsure.stdout
    assert "Scope pipeline is not confirmed, since it rests on a range" in unsure.stdout
    sure = run(*words, "--range", "-500,500")
    assert sure.exit_code == 0 and "ok   range" in sure.stdout and "is not confirmed" not in sure.stdout
    false = run(*words, "--range", "-1000,500")
    assert false.exit_code == 1 and "FAIL range" in false.stdout
    for wrong in ("1", "5,1"):
        with pytest.raises(InvalidInput, match="two numbers"):
            run(*words, "--range", wrong)
    asked("top-k", tmp_path / "other", "--max", 1, "--certificates")
    other = [tmp_path / "other" / "certificates" / "0.json", "--model", EXAMPLES + "digits", "--input", "digits"]
    with pytest.raises(InvalidInput, match="--range is for answers about numbers"):
        run("verify", *other, "--index", 0, "--scale", 0.5, "--range", "0,1")


def test_a_run_is_attacked_from_its_folder(tmp_path):
    asked("top-k", tmp_path / "run", "--max", 3)
    words = ["audit", tmp_path / "run", "--steps", 4, "--draws", 4, "--check", 300, "-q"]
    first = run(*words, "--max", 2, "--json")
    assert first.exit_code == 0 and json.loads(first.stdout)["attacked"] == 2
    again = run(*words)
    assert "3 answers attacked, 0 broken" in again.stdout
    lines = (tmp_path / "run" / "audit" / "attempts.jsonl").read_text().splitlines()
    assert len(lines) == 9  # three factors each, and none made twice
    assert run("report", tmp_path / "run", "-o", tmp_path / "page.html").exit_code == 0
    assert "3 answers were attacked inside their regions, 0 broke" in (tmp_path / "page.html").read_text()
    asked("top-k", tmp_path / "other", "--max", 3, "--n", 700)
    shutil.copytree(tmp_path / "run" / "audit", tmp_path / "other" / "audit")
    with pytest.raises(StoreError, match="the audit of another run: its attack on input 0 is not on this run's answer"):
        run("report", tmp_path / "other", "-o", tmp_path / "page.html")


# --- attacks: none of the true claims breaks, and each planted fault does ---


@pytest.mark.parametrize("name", questions_audit.KINDS)
def test_no_true_claim_breaks_and_a_planted_fault_is_found(name):
    g, cases = questions_audit.claims(name, 4)
    made = list(questions_audit.attacked(g, cases, planted=False))
    assert len(made) == 4 and not any(one.broken for one in made) and all(0 < one.size < 1 for one in made)
    assert sum(one.broken for one in questions_audit.attacked(g, cases, planted=True)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", questions_audit.KINDS)
def test_none_of_500_true_claims_breaks(name):
    g, cases = questions_audit.claims(name, 500)
    assert len(cases) == 500 and not any(one.broken for one in questions_audit.attacked(g, cases, planted=False))


def test_the_recorded_audit_is_of_500_claims_of_each_kind():
    recorded = json.loads((ROOT / "experiments" / "recorded" / "questions-audit.json").read_text())["kinds"]
    assert recorded.keys() == questions_audit.KINDS.keys()
    for row in recorded.values():  # of what is too large, nearly all that is false is found
        false = row.get("planted_false", row["claims"])
        assert row["claims"] >= 500 and row["broken"] == 0 and false >= 490 and row["planted_found"] >= 0.95 * false


def test_a_model_without_gradients_is_attacked_too():
    x = inputs(3)
    g = ucan.SmoothedRegressor(lambda b: b.detach() @ torch.tensor([1.0, -2.0, 0.5, 0.0]), ucan.Gaussian(0.5))
    for answer, point in zip(g.certify(x, radius=0.4, n=20_000), x, strict=True):
        good, _ = attack_answer(g, point[None], answer, 0.999, QUICK)
        bad, delta = attack_answer(g, point[None], fault(answer, 1.6), 0.999, QUICK)
        assert good.attack == "black-box" and not good.broken and bad.broken and delta is not None


class Refusing(nn.Module):
    """A regressor that raises an error when it is asked for gradients, forwards or backwards."""

    def __init__(self, error, backwards):
        super().__init__()
        self.error, self.backwards, self.inner = error, backwards, nn.Linear(4, 1)

    def forward(self, batch):
        if not batch.requires_grad:
            return self.inner(batch)
        if not self.backwards:
            raise self.error
        output = self.inner(batch)
        output.register_hook(self.fail)
        return output

    def fail(self, _):
        raise self.error


@pytest.mark.parametrize("backwards", [False, True])
def test_a_model_that_raises_an_error_has_no_gradient_but_too_little_memory_is_said(backwards):
    x = inputs(1)
    for error in (RuntimeError("no gradients here"), torch.OutOfMemoryError("CUDA out of memory.")):
        g = ucan.SmoothedRegressor(Refusing(error, backwards).eval(), ucan.Gaussian(0.5))
        (answer,) = g.certify(x, radius=0.1, n=200)
        if isinstance(error, torch.OutOfMemoryError):  # the weaker attack is not taken in silence
            with pytest.raises(torch.OutOfMemoryError):
                attack_answer(g, x, answer, 0.9, QUICK)
        else:
            assert attack_answer(g, x, answer, 0.9, QUICK)[0].attack == "black-box"


def test_a_fault_of_the_package_does_not_weaken_an_attack(monkeypatch):
    g = ucan.SmoothedRegressor(nn.Linear(4, 1).eval(), ucan.Gaussian(0.5))
    (answer,) = g.certify(inputs(1), radius=0.1, n=200)
    pushes = type(answer).pushes

    def wrong(self, f, output):
        if output.requires_grad:
            raise KeyError("a name that is not there")
        return pushes(self, f, output)

    monkeypatch.setattr(type(answer), "pushes", wrong)
    with pytest.raises(KeyError):
        attack_answer(g, inputs(1), answer, 0.9, QUICK)


def test_an_attack_stays_inside_and_on_the_grid():
    data = load("shapes")
    x = data[0][0][None]
    g = ucan.SmoothedRegressor(examples.boxes(), ucan.Gaussian(0.1), step=1 / 255)
    (answer,) = g.certify(x, radius=0.1, n=1000)
    found, delta = attack_answer(g, x, answer, 0.9, QUICK)
    assert found.size < 0.9 and torch.equal((delta * 255).round(), (delta * 255).round(decimals=3))


class Following(ucan.Generator):
    """Noise that follows its input."""

    scope = "frozen"

    def forward(self, x):
        return torch.zeros_like(x[0]), 0.5 + x[0].abs()


@pytest.mark.parametrize(
    ("noise", "kinds"), [(None, {"compile"}), (Following(), {"eager"})], ids=["pipeline", "frozen"]
)
def test_an_answer_is_attacked_as_its_model_ran_and_frozen_noise_is_not_compiled(noise, kinds, monkeypatch):
    """Frozen noise belongs to one input: compiled, every attack would compile anew."""
    honest, asked = backends.prepare, []

    def prepared(f, view, example, kind, precision):
        asked.append(kind)
        return replace(honest(f, view, example, "eager", precision), name=kind)

    monkeypatch.setattr("ucan.engine.prepare", prepared)
    x = inputs(1)
    g = ucan.SmoothedRegressor(nn.Linear(4, 1).eval(), ucan.Gaussian(0.5), noise)
    with g.engine.running("compile"):
        (answer,) = g.certify(x, radius=0.1, n=200)
    assert answer.evidence.backend == "compile" and answer.scope == ("pipeline" if noise is None else "frozen")
    asked.clear()
    g.engine.prepared.clear()
    found, _ = attack_answer(g, x, answer, 0.9, QUICK)
    assert not found.broken and set(asked) == kinds


def test_an_answer_about_something_else_is_not_attacked():
    x = inputs(2)
    g = ucan.SmoothedRegressor(nn.Linear(4, 1).eval(), ucan.Gaussian(0.5))
    (answer,) = g.certify(x[:1], radius=0.1, n=200)
    other = ucan.SmoothedRegressor(nn.Linear(4, 1).eval(), ucan.Gaussian(0.5))
    for h, point, what in (
        (g, x[1:], "input"),
        (other, x[:1], "model"),
        (ucan.SmoothedRegressor(g.f.model, ucan.Gaussian(0.4)), x[:1], "law"),
    ):
        with pytest.raises(InvalidInput, match=f"another {what}"):
            attack_answer(h, point, answer)


def test_frozen_answers_are_attacked_as_they_are_meant():
    class Own(ucan.Generator):
        scope = "frozen"

        def forward(self, x):
            return 5 * x[0], torch.ones_like(x[0])

    g = ucan.SmoothedRegressor(lambda b: b[:, 0], ucan.Gaussian(0.5), Own())
    (answer,) = g.certify(inputs(1), radius=0.3, n=5000)
    found, _ = attack_answer(g, inputs(1), answer, 0.999, QUICK)
    assert (
        found.mode == "frozen" and not found.broken
    )  # a generator that looks at x + δ would move the value six times as far


# --- verification as a library ---


@pytest.mark.parametrize("task", ["regression", "top-1", "confidence", "labels", "segmentation"])
def test_a_true_answer_stands_and_each_change_is_noticed(task):
    g, ((x, answer),) = questions_audit.claims(task, 1)
    verdict = verify_answer(answer, g, x, n=2000, seed=5)
    assert verdict.stands and verdict.confirms == "pipeline" and verdict.checks[-1].name == "replay"
    assert not verify_answer(answer, g, x + 1e-3, n=200).stands
    law = ucan.Laplace(0.5) if task != "regression" else ucan.Gaussian(0.4)
    changed = replace(answer, evidence=replace(answer.evidence, law=law))
    assert [c.name for c in verify_answer(changed, g, x, n=200).checks if not c.passed] == ["law"]
    with pytest.raises(InvalidInput, match="own"):
        verify_answer(answer, g, x, seed=0)


# --- the report ---


def test_the_report_shows_a_picture_for_each_kind(begun, tmp_path):
    page = tmp_path / "page.html"
    folders = [begun(task)[0] for task in ("regression", "boxes", "top-k", "confidence", "labels", "segmentation")]
    done = run("report", *folders, "-o", page)
    text = page.read_text(encoding="utf-8")
    assert done.exit_code == 0 and text.count("<section") == 6
    assert "certified; grey: left open" in text and text.count("data:image/png") == 3 * 4 + 3  # masks, and boxes
    assert "a ring the target" in text and "present" in text and "stroke-dasharray" in text
    assert "<th>input</th><th>label 0</th><th>label 1</th>" in text
    assert "keeps for every change up to this size" in text and text.count('class="line"') == 3
    assert "ucan ask regression --radius 0.1,0.2" in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("http-equiv", "")


def test_bars_within_t_have_radii_of_their_own(tmp_path):
    words = ["ask", "regression", "--within", "30", "--model", "ucan.models.examples:diabetes", "--data", "diabetes"]
    run(*words, "--n", 500, "--max", 3, "-q", "-o", tmp_path / "run")
    assert run("report", tmp_path / "run", "-o", tmp_path / "page.html").exit_code == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "stays, ± 30 up to a radius of its own" in text and "largest of the radii" not in text


@pytest.mark.parametrize("task", TASKS)
def test_the_command_of_a_report_repeats_the_run(task, begun, tmp_path):
    repeated(begun(task)[0], tmp_path)


def repeated(folder, tmp_path):
    """The words of the command of a run's report, which makes the same run again."""
    (found,) = read_asked([folder])
    words = shlex.split(command(found))
    tmp_path.mkdir(exist_ok=True)
    assert run(*words[1:-1], tmp_path / "again", "-q").exit_code == 0
    assert records(tmp_path / "again") == records(folder)
    first, again = (read_config(path / "config.toml") for path in (folder, tmp_path / "again"))
    for about in (first, again):
        del about["started_in"]
        about.get("given", {}).pop("law", None)  # the default is written out
        about.get("given", {}) or about.pop("given", None)
    assert first == again
    return words


MORE = {
    "size": "regression --radius 0.1234567 --range 0,inf --percentile 0.25 --precision bf16 --batch-size 64 --family 7",
    "noise": "regression --within 30 --law laplace --scale 0.2 --norm 1 --skip 2 --seed derived --arithmetic real",
    "law": "regression --radius 0.1 --law powerlaw --exponent 30.5",
    "model": "top-k --top 3 --classes 10 --trust --budget 0.5 --split train",
    "shape": "confidence --confidence 0.6 --noise pattern-2 --n0 50 --alpha 0.01 --stop 0.1",
}


@pytest.mark.parametrize("name", MORE)
def test_the_command_of_a_report_has_the_options_that_were_given(name, tmp_path):
    words = shlex.split(MORE[name])
    about = ("diabetes", "diabetes") if words[0] == "regression" else ("digits", "digits")
    done = run("ask", *words, "--model", EXAMPLES + about[0], "--data", about[1], "--n", 200, "--max", 2, "-q",
               "-o", tmp_path / "run")  # fmt: skip
    assert done.exit_code == 0
    told = repeated(tmp_path / "run", tmp_path)
    for option, value in pairwise(words):
        if option.startswith("--"):
            assert option in told and (value.startswith("--") or told[told.index(option) + 1] == value)


def test_the_command_of_a_report_finds_pictures_and_weights_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        folder = tmp_path / "pictures" / f"class-{number}"
        folder.mkdir(parents=True)
        Image.new("L", (10, 10), 90 + 80 * number).save(folder / "one.png")
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval()
    (tmp_path / "shown.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval()\n"
        "def plain(x): return x.mean((2, 3))\n"
    )
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    monkeypatch.syspath_prepend(tmp_path)
    for name, model in {
        "net": "--model shown:net --weights net.safetensors --normalise half",
        "plain": "--model shown:plain --classes 3 --model-id mine",
    }.items():
        options = [*model.split(), "--data", "pictures", "--size", "4", "--channels", "3"]
        assert run("ask", "top-k", "--top", 1, *options, "--n", 200, "-q", "-o", name).exit_code == 0
        told = repeated(Path(name), tmp_path / f"{name} again")
        assert all(word in told for word in options)


def test_runs_of_both_kinds_need_a_page_each(tmp_path):
    asked("labels", tmp_path / "run", "--max", 1)
    with pytest.raises(InvalidInput, match="a page each"):
        run("report", tmp_path / "run", tmp_path, "-o", tmp_path / "page.html")
