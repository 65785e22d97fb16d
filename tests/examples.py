"""Every example of the README and the docs, as a program that needs neither pytest nor any extra.

`python tests/examples.py FOLDER [PAGE...]` makes what the examples speak of (a model, pictures, tables) in FOLDER, and runs
every Python block and `ucan` line there. Where an example needs a package that is not installed, it must end in one line
that says which, and how to install it; or the example imports that package itself, and the page names the extra.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```py(?:thon)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
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
rows = "".join(f"{i}\\t0\\t0\\t0.5\\t1\\t0:00:01\\n" for i in range(3))
Path("cohen.tsv").write_text("idx\\tlabel\\tpredict\\tradius\\tcorrect\\ttime\\n" + rows)
'''
# What an example takes for granted: runs of an earlier example, in another folder.
BEFORE: dict[str, str] = {
    "runs/mine": "ucan certify --model mymodels:resnet --data images/ --scale 0.25 --n 200 --certificates -o runs/mine",
    "runs/other": "ucan certify --model mymodels:resnet --data images/ --scale 0.5 --n 200 -o runs/other",
    "runs/digits-isotropic": "ucan train digits-isotropic --set epochs=1 -o runs/digits-isotropic",
    "runs/digits": "ucan train digits-isotropic --set epochs=1 -o runs/digits",
}


# Runs blocks of a page one after the other, as one program, and prints what is wrong. A block for which a package is not
# installed is left, and so are those that need its names.
PROGRAM = """
import json, sys
page, stated, code = json.loads(sys.stdin.read())
left = False
for line, block in code:
    try:
        exec(compile(chr(10) * (line - 1) + block, page, "exec"), globals())
    except Exception as error:
        lacks = "pip install" in str(error) or (stated and isinstance(error, ImportError))
        left |= lacks
        wrong = not (lacks or (left and isinstance(error, NameError)))
        print("wrong" if wrong else "left", line, repr(error))
"""


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
    if kind == "train" and (len(words) < 3 or words[2] in ("list", "show")):
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
        timeout=300,
    )
    if target:
        (folder / target).write_text(done.stdout)
    if done.returncode == 0:
        return ""
    if done.stderr.startswith("ucan: ") and "pip install" in done.stderr and len(done.stderr.splitlines()) == 1:
        raise Lacking(done.stderr)
    return f"{shell}: {done.stderr.strip()[-400:] or done.stdout.strip()[-400:]}"


def run_blocks(page: Path, folder: Path) -> tuple[list[str], set[str]]:
    """Run the Python blocks of a page in the folder: what is wrong, and the files that blocks left out would have made."""
    text = page.read_text(encoding="utf-8")
    given = json.dumps([str(page), "ucan[" in text or "pip install" in text, blocks(page)])
    program = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(program, cwd=folder, input=given, capture_output=True, text=True, timeout=600)
    said = re.findall(r"^(wrong|left) (\d+) (.*)$", done.stdout, re.MULTILINE)
    wrong = [f"{page.name}, line {line}: {error}" for word, line, error in said if word == "wrong"]
    left = "".join(code for line, code in blocks(page) if ("left", str(line)) in [one[:2] for one in said])
    return wrong + ([done.stderr.strip()[-400:]] if done.returncode else []), set(re.findall(r'"([\w./-]+)"', left))


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
        subprocess.run([sys.executable, "-W", "ignore", "-c", WORLD], cwd=place, check=True, capture_output=True)
        found = check_page(page, place)
        print(f"{named(page)}, {time.monotonic() - start:.0f} s: {'; '.join(found) or 'all run'}", flush=True)
        wrong += found
    return len(wrong)


if __name__ == "__main__":
    sys.exit(1 if main(Path(sys.argv[1]).resolve(), sys.argv[2:]) else 0)
