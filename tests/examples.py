"""Every example of the README and the docs, as a program that needs neither pytest nor any extra.

`python tests/examples.py FOLDER [PAGE...]` makes what the examples speak of (a model, pictures, tables) in FOLDER, and runs
every Python block and `ucan` line there. Where an example needs a package that is not installed, it must end in one line
that says which, and how to install it; or the example imports that package itself, and the page names the extra.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```py(?:thon)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r'"([\w-]+[./][\w./-]+)"')
MADE = re.compile(r" (?:-o|>) (\S+)")
LINE = re.compile(r"^(?:    |```sh\n)(ucan [a-z].*?)(?:\s{2,}#.*)?$", re.MULTILINE)

# What makes an example short. What an example says itself comes first.
SHORT = {
    "certify": {"--n": "100", "--max": "3"},
    "predict": {"--n": "50", "--max": "3"},
    "recertify": {"--n": "100"},
    "audit": {"--max": "2", "--steps": "2", "--draws": "2", "--check": "200", "--min-radius": "0"},
    "verify": {},
    "bench": {"--n": "1000"},
    "train": {"--set": "epochs=1"},
    "ask": {"--n": "100", "--max": "2"},
    "leaderboard": {"--inputs": "2", "--attacks": "1"},
}
# What cannot be run here: a server that does not end, data that are not there, an hour of work, what stands for more.
LEFT_OUT = re.compile(
    r"explore|serve|imagenet|cifar|mnist|--cluster|…|bench|pretrained|srun|torchrun|tuned|stripes|demo"
)

WORLD = '''
import csv, pickle
import numpy as np, torch
from PIL import Image
from pathlib import Path
from sklearn.linear_model import LogisticRegression

Path("mymodels.py").write_text("""
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.linear.weight.data = torch.tensor([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
        self.linear.bias.data = torch.tensor([1.5, -1.5])
    def forward(self, x):
        return self.linear(x.mean((2, 3)))
resnet = Net().eval()
def net():
    return Net()
chooser = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).eval()
chooser[1].weight.data.zero_()
chooser[1].bias.data = torch.tensor([1.0, 0.0])
""")
rng = np.random.default_rng(0)
for name, grey in (("dark", 40), ("light", 200)):
    Path("images", name).mkdir(parents=True)
    for k in range(10):
        picture = np.clip(grey + rng.integers(-9, 9, (16, 16, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(picture).save(f"images/{name}/{k}.png")
Image.open("images/light/7.png").save("digit.png")
np.savez("test.npz", x=np.stack([np.moveaxis(np.asarray(Image.open(f"images/dark/{k}.png")), 2, 0) for k in range(3)]),
         y=[0, 0, 0])
from mymodels import Net
torch.save(Net().state_dict(), "net.pt")
batch = torch.export.Dim("batch", min=1, max=4096)
program = torch.export.export(Net().eval(), (torch.zeros(4, 3, 16, 16),), dynamic_shapes=({0: batch},))
torch.export.save(program, "net.pt2")
try:
    torch.onnx.export(Net().eval(), (torch.zeros(4, 3, 16, 16),), "net.onnx", dynamo=False, input_names=["x"],
                      dynamic_axes={"x": {0: "n"}})
except Exception:
    Path("net.onnx").touch()
def table(path, start, count):
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["customer", "income", "age", "approved"])
        for i in range(start, start + count):
            income, age = int(rng.normal(50000, 9000)), int(rng.integers(18, 80))
            out.writerow([f"C-{i:04d}", income, age, "yes" if income > 50000 else "no"])
table("train.csv", 0, 200)
table("loans.csv", 500, 5)
rows = list(csv.DictReader(open("train.csv")))
fitted = LogisticRegression().fit([[float(r["income"]), float(r["age"])] for r in rows], [r["approved"] for r in rows])
try:
    import skops.io
    skops.io.dump(fitted, "credit.skops")
except ImportError:
    Path("credit.skops").touch()
Path("router.toml").write_text("""
selector = { model = "mymodels:chooser", scale = 0.5 }
expert = [
  { model = "ucan.models.examples:digits", scale = 0.25 },
  { model = "ucan.models.examples:digits", scale = 0.12 },
]
""")
rows = "".join(f"{i}\\t0\\t0\\t0.5\\t1\\t0:00:01\\n" for i in range(3))
Path("cohen.tsv").write_text("idx\\tlabel\\tpredict\\tradius\\tcorrect\\ttime\\n" + rows)
'''
# What an example takes for granted: runs of an earlier example, in another folder.
BEFORE: dict[str, str] = {
    "runs/mine": "ucan certify --model mymodels:resnet --data images/ --scale 0.25 --n 200 --certificates -o runs/mine",
    "runs/other": "ucan certify --model mymodels:resnet --data images/ --scale 0.5 --n 200 -o runs/other",
    "runs/digits-isotropic": "ucan train digits-isotropic --set epochs=1 -o runs/digits-isotropic",
    "runs/digits": "ucan train digits-isotropic --set epochs=1 -o runs/digits",
    "runs/wide-certified": "ucan certify --model ucan.models.examples:digits --data digits --scale 0.25 --n 100 --max 3 "
    "-o runs/wide-certified",
}


# Runs the blocks of a page as one program, in an interpreter of its own.
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); import examples; del sys.path[0]; examples.execute(sys.argv[2])"


def named(page: Path) -> str:
    """Its name here: tutorials/table."""
    return page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")


def blocks(page: Path) -> list[tuple[int, str]]:
    """(line, code) of each Python block."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)) + 1, found.group(1)) for found in BLOCK.finditer(text)]


def commands(page: Path) -> list[str]:
    """The `ucan` lines of a page."""
    return [found.group(1).strip() for found in LINE.finditer(page.read_text(encoding="utf-8"))]


def shortened(line: str) -> list[str]:
    """The words of a command, with less work in it."""
    words = shlex.split(line)
    kind = words[1]
    if words[1:3] in (["train", "list"], ["train", "show"], ["leaderboard", "page"]) or words == ["ucan", "train"]:
        return words
    for option, value in SHORT.get(kind, {}).items():
        if option in words and option not in ("--set",):
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    return words


class Lacking(Exception):
    """An example said in one line which package is to be installed."""


def run(words: list[str], folder: Path) -> str:
    """Run one command in the folder; what is wrong with it, or an empty text. Raises Lacking."""
    shell = " ".join(words)
    target = shell.partition(" > ")[2].strip()
    words = shlex.split(shell.partition(" > ")[0]) if target else words
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if target:
        (folder / target).write_text(done.stdout)
    if done.returncode == 0:
        return ""
    if done.stderr.startswith("ucan: ") and "pip install" in done.stderr and len(done.stderr.splitlines()) == 1:
        raise Lacking(done.stderr)
    return f"{shell}: {done.stderr.strip()[-400:] or done.stdout.strip()[-400:]}"


def execute(page: str) -> None:
    """Run the blocks of a page one after the other in ``__main__``, and print which are wrong, and which were left.

    A block is left if a package for it is not installed, and so is one that uses a name or a file of a block that was left.
    """
    text, names = Path(page).read_text(encoding="utf-8"), vars(sys.modules["__main__"])
    stated = "ucan[" in text or "pip install" in text
    absent = set[str]()
    for line, code in blocks(Path(page)):
        makes, takes = _made_and_taken(code)
        error: Exception | None = None
        if not takes & absent:
            try:
                exec(compile("\n" * (line - 1) + code, page, "exec"), names)
            except Exception as found:
                error = found
            else:
                absent -= makes
                continue
        lacks = error is None or "pip install" in str(error) or (stated and isinstance(error, ImportError))
        print("left" if lacks else "wrong", line, repr(error))
        absent |= makes | set(FILE.findall(code)) if lacks else set()


def _made_and_taken(code: str) -> tuple[set[str], set[str]]:
    """The names that a block binds, and the names and files that it may take from earlier blocks."""
    makes, takes = set[str](), set(FILE.findall(code))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (takes if isinstance(node.ctx, ast.Load) else makes).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            makes.add(node.name)
        elif isinstance(node, ast.alias):
            makes.add((node.asname or node.name).partition(".")[0])
    return makes, takes - makes


def run_blocks(page: Path, folder: Path) -> tuple[list[str], set[str]]:
    """Run the Python blocks of a page in the folder: what is wrong, and the files that blocks left out would have made."""
    program = [sys.executable, "-c", PROGRAM, str(ROOT / "tests"), str(page)]
    done = subprocess.run(program, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = re.findall(r"^(wrong|left) (\d+) (.*)$", done.stdout, re.MULTILINE)
    wrong = [f"{page.name}, line {line}: {error}" for word, line, error in said if word == "wrong"]
    left = {int(line) for word, line, _ in said if word == "left"}
    files = set(FILE.findall("".join(code for line, code in blocks(page) if line in left)))
    return wrong + ([done.stderr.strip()[-400:]] if done.returncode else []), files


def check_page(page: Path, folder: Path) -> list[str]:
    """Run the examples of a page in the folder; what is wrong."""
    wrong, lacking = run_blocks(page, folder)
    lines = [line for line in commands(page) if not LEFT_OUT.search(line)]
    for line in set(commands(page)) - set(lines):
        lacking |= set(MADE.findall(line)) - set(MADE.findall(" ".join(lines)))
    for name, before in BEFORE.items():
        made = any(f"-o {name}" in line for line in lines)
        if not made and any(name in line for line in lines) and not (folder / name).exists():
            wrong += _problem(shlex.split(before), folder, lacking)
    for line in lines:
        words = shortened(line)
        if "finetuned" in line or lacking & set(words):
            lacking |= set(MADE.findall(line))
            continue
        wrong += [f"{page.name}: {problem}" for problem in _problem(words, folder, lacking)]
        if (folder / "entry.json").exists():  # what the page says that people write themselves
            entry = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
            entry["claim"] |= {"networks": 1, "extra_data": False}
            (folder / "entry.json").write_text(json.dumps(entry), encoding="utf-8")
        if "-o runs/mine" in line and (folder / "runs/mine").exists():  # the others need its certificates, all of them
            run(shlex.split(BEFORE["runs/mine"].replace("200", "100")), folder)
    return wrong


def _problem(words: list[str], folder: Path, lacking: set[str]) -> list[str]:
    """Run a command; what it would have made without a missing package is noted in ``lacking``."""
    try:
        problem = run(words, folder)
    except Lacking:
        lacking |= {words[words.index("-o") + 1]} if "-o" in words else set()
        return []
    return [problem] if problem else []


def main(folder: Path, names: list[str]) -> int:
    """Run the examples of these pages, or of all; the number of those that do not work."""
    wrong = []
    for page in PAGES:
        if (names and named(page) not in names) or not (blocks(page) or commands(page)):
            continue
        start, place = time.monotonic(), folder / named(page)
        place.mkdir(parents=True)
        shutil.copytree(ROOT / "leaderboard", place / "leaderboard")
        subprocess.run([sys.executable, "-W", "ignore", "-c", WORLD], cwd=place, check=True, capture_output=True)
        found = check_page(page, place)
        print(f"{named(page)}, {time.monotonic() - start:.0f} s: {'; '.join(found) or 'all run'}", flush=True)
        wrong += found
    return len(wrong)


if __name__ == "__main__":
    sys.exit(1 if main(Path(sys.argv[1]).resolve(), sys.argv[2:]) else 0)
