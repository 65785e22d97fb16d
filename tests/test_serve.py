"""`ucan serve` as a process on a socket: concurrent clients, abuse, signals, and promises that outlive a kill."""

import http.server
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from served import inputs, thirds
from ucan import Client, Gaussian, Registry, SmoothedClassifier
from ucan.certificate import Abstention, Certificate, Prediction
from ucan.cli import app
from ucan.cli.bench import _ms
from ucan.errors import InvalidInput, ServiceError
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.read import Run
from ucan.service.deployed import Deployed
from ucan.service.load import generate, measure_run, resident, run_inputs, within

pytest.importorskip("uvicorn")
ROOT = Path(__file__).parents[1]
XS = inputs()
TOKEN = "a-token-of-the-tests-0123456789"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run about pictures of 4 × 4 pixels."""
    folder = tmp_path_factory.mktemp("serve")
    np.savez(folder / "data.npz", x=XS.numpy(), y=np.zeros(len(XS), np.int64))
    job = CertifyJob(model="served:thirds", data=str(folder / "data.npz"), law="gaussian", scale=0.25, n=400)
    certify(job, folder / "run")
    return folder / "run"


@contextmanager
def process(run: Path, *options: str, token: str | None = None, **environment: str) -> Iterator[Any]:
    """`ucan serve RUN` on a free port; the process has its address as ``url``."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    env.pop("UCAN_TOKEN", None)
    if token is not None:
        env["UCAN_TOKEN"] = token
    words = [sys.executable, "-m", "ucan", "serve", str(run), "--port", "0", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as made:
        line = made.stdout.readline()
        assert line, made.stderr.read()
        made.url = re.search(r"http://\S+", line)[0]
        # what it logs is taken away, or it would wait for a reader one day
        threading.Thread(target=lambda: [None for _ in made.stderr], daemon=True).start()
        try:
            yield made
        finally:
            made.kill()
            made.wait()


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Any]:
    log = run.parent / "log"
    limits = ("--max-n", "1000000", "--slow", "1", "--max-body", "100000", "--queue", "64")
    with process(run, *limits, "--log", str(log), token=TOKEN) as made:
        made.log = log
        yield made


def library() -> SmoothedClassifier:
    return SmoothedClassifier(thirds(), Gaussian(0.25), None, 3)


OPTIONS: list[dict[str, Any]] = [
    {"n": 1000, "stop": [0.1, 0.25]},
    {"n": 500, "alpha": 0.01},
    {"n": 900, "norm": float("inf")},
    {"n": 2000, "stop": "10%"},
]


def as_json(outcome: Certificate | Abstention | Prediction) -> dict[str, Any]:
    return json.loads(json.dumps(outcome.to_dict()))


def test_concurrent_clients_get_the_answers_of_the_library(server):
    g, client, wrong = library(), Client(server.url, TOKEN), []

    def ask(number: int) -> None:
        for i in range(number, len(XS), 4):
            options = {**OPTIONS[number], "seed": 10 * number + i}
            found = client.certify(XS[i], **options)
            (wanted,) = g.certify(XS[i : i + 1], **options)
            (likely,) = g.predict(XS[i : i + 1], n=200, seed=i)
            if as_json(found) != as_json(wanted) or as_json(client.predict(XS[i], n=200, seed=i)) != as_json(likely):
                wrong.append((i, options))
        client.close()

    g.check_inputs(XS)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_with_the_seed_of_its_run_the_service_gives_the_certificates_of_the_run(server, run):
    opened, client = Run.open(run), Client(server.url, TOKEN)
    for i in range(len(XS)):
        assert as_json(client.certify(XS[i], seed=opened.config.sampling.number)) == as_json(opened.outcome(i))
    client.close()


def test_a_question_is_answered_over_the_network_as_by_the_library(tmp_path):
    np.savez(tmp_path / "data.npz", x=XS.numpy(), y=np.zeros(len(XS), np.int64))
    words = ("--model", "served:thirds", "--data", tmp_path / "data.npz", "--classes", 3, "--n", 400, "--max", 2)
    made = CliRunner().invoke(app, ["ask", "top-k", "--top", "1", *map(str, words), "-q", "-o", str(tmp_path / "run")])
    assert made.exit_code == 0, made.output
    (wanted,) = library().certify(XS[3:4], n=600, top=1, seed=5, stop=0.05)
    with process(tmp_path / "run", "--log", "none") as server:
        client = Client(server.url)
        assert as_json(client.ask(XS[3], n=600, seed=5, stop=0.05)) == as_json(wanted)
        with pytest.raises(ServiceError, match="answers the question top-k: use /v1/ask"):
            client.certify(XS[3])
        client.close()


def test_a_load_is_counted_on_both_sides(server, monkeypatch, tmp_path):
    monkeypatch.setenv("UCAN_TOKEN", TOKEN)
    words = ["bench", "--serve", server.url, "--seconds", "1", "--clients", "4", "-o", str(tmp_path / "load.json")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "99 % within" in done.output and "Sent: random inputs" in done.output, done.output
    load = json.loads((tmp_path / "load.json").read_text())
    assert load["answers"] == load["server_answers"] > 0 and load["statuses"] == {} and load["median"] <= load["p99"]


def test_so_many_answers_came_within_the_time_that_is_said():
    waits = [k / 1000 for k in range(1, 125)]
    for share in (0.5, 0.99, 1.0):
        time_ = within(waits, share)
        assert sum(wait <= time_ for wait in waits) >= share * len(waits) and time_ in waits
    assert within(waits, 0.99) == 0.123 and math.isnan(within([], 0.99))
    assert _ms(0.1503) == "151" and _ms(math.nan) == "–"


def test_the_client_says_what_went_wrong(server):
    for client, status in [(Client(server.url, "x" * 20), 401), (Client(server.url, TOKEN), 400)]:
        with pytest.raises(ServiceError) as caught:
            client.certify(XS[0][:, :2])
        assert caught.value.status == status and server.url in str(caught.value)
    assert Client(server.url, TOKEN).about()["shape"] == [1, 4, 4] and Client(server.url).healthy()
    assert not Client("http://127.0.0.1:9").healthy()
    with pytest.raises(ServiceError, match="cannot be reached"):
        Client("http://127.0.0.1:9").about()


def test_the_client_says_why_a_body_is_refused_before_its_end(server):
    with pytest.raises(ServiceError, match="the body is larger than 100,000 bytes") as caught:
        Client(server.url, TOKEN).certify(np.zeros((3, 1000, 1000)))
    assert caught.value.status == 413


def test_the_client_takes_the_numbers_of_numpy_and_every_tensor(server):
    client, x = Client(server.url, f"{TOKEN}\n"), XS[0].to(torch.bfloat16)  # a token as it stands in its file
    c = client.certify(x, n=np.int64(500), alpha=np.float32(0.01), stop=np.array([0.1, 0.25]), seed=np.uint8(3))
    (own,) = library().certify(x.float()[None], n=500, alpha=float(np.float32(0.01)), stop=[0.1, 0.25], seed=3)
    assert as_json(c) == as_json(own)
    for wrong in ({"n": object()}, {"n": {1: object()}}):
        with pytest.raises(InvalidInput, match="an option must be a number"):
            client.certify(x, **wrong)
    with pytest.raises(InvalidInput, match="a tensor or an array of numbers"):
        client.certify(object())


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:abc", "ftp://x", 8000, None]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(InvalidInput, match="url must look like"):
        Client(url)


def test_a_token_that_no_header_can_have_is_refused():
    with pytest.raises(InvalidInput, match="printable ASCII"):
        Client("http://127.0.0.1:9", "one\ntwo")


class Other(http.server.BaseHTTPRequestHandler):
    """Another program, which answers everything with the same."""

    status, body, retry = 200, b"", ""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.body)))
        if self.retry:
            self.send_header("retry-after", self.retry)
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()

    def answering(body: bytes, status: int = 200, retry: str = "") -> Client:
        for name, value in {"body": body, "status": status, "retry": retry}.items():
            monkeypatch.setattr(Other, name, value)
        return Client(f"http://127.0.0.1:{made.server_address[1]}", patience=0.5)

    yield answering
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_another_program_is_told_from_a_service(another, body):
    client = another(body)
    for ask in (client.about, lambda: client.certify(XS[0]), lambda: client.predict(XS[0])):
        with pytest.raises(ServiceError, match="is it another program"):
            ask()


def test_the_answer_to_another_question_is_none(another):
    (prediction,) = library().predict(XS[:1], n=200)
    client = another(json.dumps(as_json(prediction)).encode())
    assert client.predict(XS[0]).prediction == prediction.prediction
    with pytest.raises(ServiceError, match="another question than was asked"):
        client.certify(XS[0])


@pytest.mark.parametrize(
    ("x", "options", "said"),
    [
        (XS[1], {}, "about another input"),
        (torch.zeros(3, 8, 8), {}, r"inputs of shape \(1, 4, 4\), and this one has \(3, 8, 8\)"),
        (XS[0], {"norm": float("inf")}, "about norm 2, and inf was asked for"),
        (XS[0], {"alpha": 1e-6}, "its alpha is 0.001, and 1e-06 was asked for"),
        (XS[0], {"n": np.int64(300)}, "its n is 400, and 300 was asked for"),
    ],
)
def test_a_certificate_of_something_else_than_was_asked_is_refused(another, x, options, said):
    (made,) = library().certify(XS[:1], n=400)
    client = another(json.dumps(as_json(made)).encode())
    with pytest.raises(ServiceError, match=f"answered something else than was asked: .*{said}"):
        client.certify(x, **options)


def test_a_certificate_of_what_was_asked_is_taken_in_any_precision_that_a_service_may_read(another):
    pixels = (255 * XS[:1]).to(torch.uint8)
    for given, read in [
        (XS[:1], XS[:1]),
        (XS[0].double() * (1 + 1e-12), XS[:1]),
        (XS[0].double().numpy(), XS[:1].double()),
        (XS[0].to(torch.bfloat16), XS[:1].to(torch.bfloat16)),
        (XS[0].tolist(), XS[:1]),
        (pixels, pixels.float() / 255),
        (pixels.numpy()[0, ..., ::-1], pixels.flip(-1).float() / 255),  # a view with a negative stride
    ]:
        (made,) = library().certify(read, n=400, alpha=0.01)
        client = another(json.dumps(as_json(made)).encode())
        assert as_json(client.certify(given, n=400, alpha=np.float64(0.01), norm=2)) == as_json(made)


def test_a_registry_may_answer_with_the_votes_of_an_earlier_input(another, tmp_path):
    with Registry(tmp_path / "r") as registry:
        first, again = registry.certify(library(), torch.cat([XS[:1], XS[:1] + 1e-3]), n=400)
    assert first.evidence.input_hash == again.evidence.input_hash
    client = another(json.dumps(as_json(again)).encode())
    assert client.certify(XS[0] + 1e-3, n=100, alpha=1e-6).scope == "registry"
    with pytest.raises(ServiceError, match="about inputs of shape"):
        client.certify(torch.zeros(3, 8, 8))


@pytest.mark.parametrize("retry", ["Wed, 21 Oct 2026 07:28:00 GMT", "nan", "-5"])
def test_a_proxy_may_give_a_date_to_try_again(another, retry):
    with pytest.raises(ServiceError) as caught:
        another(b"<html>", 503, retry).about()
    assert caught.value.status == 503


def test_a_client_that_waited_in_vain_asks_anew():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.2)
        assert not client.healthy()  # nobody answers
        first, _ = listener.accept()

        def answer() -> None:
            second, _ = listener.accept()
            with second:
                second.recv(1000)
                second.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        with first:
            threading.Thread(target=answer, daemon=True).start()
            client.timeout = 5.0
            assert client.healthy()


# --- abuse ---


def connection(url: str) -> socket.socket:
    host, port = re.match(r"http://([\d.]+):(\d+)", url).groups()
    return socket.create_connection((host, int(port)), timeout=5)


def head(length: int, *more: str) -> bytes:
    lines = [
        "POST /v1/certify HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {length}",
        "Content-Type: application/json",
    ]
    return "\r\n".join([*lines, f"Authorization: Bearer {TOKEN}", *more, "", ""]).encode()


def garbage(url: str, rng: random.Random) -> None:
    with connection(url) as s:
        s.sendall(rng.randbytes(rng.randrange(1, 3000)))
        with suppress(TimeoutError):
            s.settimeout(0.5)
            s.recv(1000)


def not_json(url: str, rng: random.Random) -> None:
    body = rng.choice([b"{" * 5000, rng.randbytes(500), b'{"input": NaN}', b'{"input": [[[1e999]]]}', b"[]", b'"\xff"'])
    with connection(url) as s:
        s.sendall(head(len(body)) + body)
        assert b" 400 " in s.recv(1000)


def huge(url: str, rng: random.Random) -> None:
    with connection(url) as s:
        s.sendall(head(10**12))
        assert b" 413 " in s.recv(1000)
    with connection(url) as s, suppress(OSError):  # in pieces whose sum is not told beforehand
        s.sendall(head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        for _ in range(40):
            s.sendall(b"2000\r\n" + b" " * 0x2000 + b"\r\n")
        assert b" 413 " in s.recv(1000)


def endless(url: str, rng: random.Random) -> None:
    with connection(url) as s, pytest.raises(OSError):
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        for _ in range(1000):
            s.sendall(b"X-More: " + b"x" * 10_000 + b"\r\n")


def nan(url: str, rng: random.Random) -> None:
    with pytest.raises(ServiceError, match="NaN"):
        Client(url, TOKEN).certify(np.full((1, 4, 4), rng.choice([np.nan, np.inf]), np.float32))


def slow(url: str, rng: random.Random) -> None:
    with connection(url) as s, suppress(OSError):
        data = rng.choice([head(100) + b"{", b"POST /v1/certify HT"])
        for i in range(len(data)):
            s.sendall(data[i : i + 1])
            time.sleep(0.002)
        s.settimeout(3)
        assert s.recv(1000)[:12] in (b"", b"HTTP/1.1 408")


def wrong_token(url: str, rng: random.Random) -> None:
    with pytest.raises(ServiceError, match="token"):
        Client(url, "0" * 20).certify(XS[0])


def hang_up(url: str, rng: random.Random) -> None:
    body = json.dumps({"input": XS[0].tolist(), "n": 10**6}).encode()
    with connection(url) as s:
        s.sendall((head(len(body)) + body)[: rng.randrange(1, 1000)])
        if rng.random() < 0.5:
            s.sendall(body)


def soak(server: Any, seconds: float) -> None:
    """Everyone who means ill at once, for as long, beside two who ask as they should."""
    kinds = [garbage, not_json, huge, endless, nan, slow, wrong_token, hang_up]
    last, done, broken = time.monotonic() + seconds, dict.fromkeys(kinds, 0), []

    def annoy(kind: Any) -> None:
        rng = random.Random(kind.__name__)
        while time.monotonic() < last:
            try:
                kind(server.url, rng)
                done[kind] += 1
                time.sleep(0.01)  # who only floods is the firewall's to stop
            except Exception as error:
                broken.append((kind.__name__, error))
                return

    threads = [threading.Thread(target=annoy, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    load = generate(server.url, XS, clients=2, seconds=seconds, options={"n": 300}, token=TOKEN)
    for thread in threads:
        thread.join()
    assert broken == [] and min(done.values()) > 0
    assert load.statuses == {} and load.answers > 3 * seconds
    assert server.poll() is None and Client(server.url).healthy()
    found = Client(server.url, TOKEN).certify(XS[3], n=500, seed=4)
    assert as_json(found) == as_json(library().certify(XS[3:4], n=500, seed=4)[0])


def test_the_service_stays_up_whatever_others_send(server):
    soak(server, 3.0)


@pytest.mark.slow
def test_a_minute_of_abuse_leaves_the_service_and_its_memory_as_they_were(server):
    soak(server, 10.0)
    before = resident(server.pid)
    soak(server, 60.0)
    after = resident(server.pid)
    assert before is not None and after is not None and after - before < 30, (before, after)


# --- signals ---


def rounds(run: Path, folder: Path, count: int, keep: int) -> int:
    """SIGKILL in the midst of requests, restart, and look whether all that was promised before still holds."""
    path, rng = folder / "answers.sqlite", random.Random(0)
    promised: list[tuple[torch.Tensor, Any]] = []
    noise = torch.Generator().manual_seed(1)
    for _ in range(count):
        with process(run, "--registry", str(path), "--log", "none") as server:
            client = Client(server.url, patience=0)
            for x, certificate in promised:
                delta = torch.randn(x.shape, generator=noise)
                inside = x + 0.95 * certificate.radius * delta / delta.norm()
                assert client.certify(inside, n=200).prediction == certificate.prediction
                assert client.certify(x, n=200).radius >= certificate.radius * (1 - 1e-6)

            def ask(number: int, client: Client = client) -> None:
                points = torch.Generator().manual_seed(hash((number, len(promised))) % 2**31)
                with suppress(ServiceError):
                    while True:
                        x = torch.rand(1, 4, 4, generator=points)
                        outcome = client.certify(x, n=200)
                        if isinstance(outcome, Certificate) and outcome.radius > 0:
                            promised.append((x, outcome))

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.3 + rng.random())
            server.send_signal(signal.SIGKILL)
            for thread in threads:
                thread.join()
            del promised[keep:]
    return len(promised)


def test_promises_outlive_a_kill(run, tmp_path):
    assert rounds(run, tmp_path, 2, keep=8) >= 5


@pytest.mark.slow
def test_promises_outlive_twenty_kills(run, tmp_path):
    assert rounds(run, tmp_path, 20, keep=30) >= 20


# --- throughput ---


def test_what_is_sent_to_a_run_under_load_is_said(run, tmp_path, monkeypatch):
    deployed = Deployed.open(run, device=torch.device("cpu"))
    inputs, sent = run_inputs(run, deployed)
    assert torch.equal(inputs[: len(XS)], XS) and sent.startswith("inputs of ")
    monkeypatch.setattr("ucan.service.load.data_of", lambda *_, **__: (_ for _ in ()).throw(InvalidInput("it is gone")))
    inputs, sent = run_inputs(run, deployed)
    assert inputs.shape[1:] == XS.shape[1:] and sent.startswith("random inputs") and "it is gone" in sent


@pytest.mark.slow
def test_the_service_certifies_at_nearly_the_rate_of_certify(tmp_path):
    """Per second of a processor, the load generator's own apart; 32 clients, digits, n = 1,000 with stopping."""
    pytest.importorskip("sklearn")
    net, run = str(tmp_path / "net"), str(tmp_path / "run")
    sampling = ["--n", "1000", "--stop", "0.25,0.5", "-q"]
    for words in (
        ["train", "digits-isotropic", "-o", net, "-q"],
        ["certify", "--model", net, "--data", "digits", *sampling, "-o", run],
    ):
        assert CliRunner().invoke(app, words).exit_code == 0
    measured = measure_run(run, clients=32, seconds=60.0)
    load = measured.load
    assert load.answers == load.server_answers and load.statuses == {}
    assert measured.ratio is not None and measured.ratio >= 0.8, measured
    assert load.server_memory is not None and load.server_memory[1] - load.server_memory[0] < 20, load.server_memory


# --- the door ---


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("{run}", "--host", "0.0.0.0"), "need a token"),
        (("{run}/none",), "there is no folder"),
        (("{run}", "--model", "served:other"), "not the one that"),
        (("{run}", "--norms", "3"), "--norms takes"),
        (("{run}", "--max-alpha", "2"), "alpha is limited"),
    ],
)
def test_what_cannot_be_served_is_refused(run, words, said, monkeypatch, capsys):
    from ucan.cli import main

    monkeypatch.delenv("UCAN_TOKEN", raising=False)
    monkeypatch.setattr(sys, "argv", ["ucan", "serve", "--port", "0", *(word.format(run=run) for word in words)])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        main()
    signal.signal(signal.SIGTERM, before)
    assert left.value.code == 2 and said in capsys.readouterr().err


def test_sigterm_finishes_what_was_begun_and_ends_with_0(server):
    """The last test with this server."""
    client, got = Client(server.url, TOKEN, patience=0), []

    def ask(i: int) -> None:
        try:
            got.append(("200", as_json(client.certify(XS[i], n=60_000, seed=i))))
        except ServiceError as error:
            got.append((str(error.status), error.code))

    before = len(server.log.read_text().splitlines())
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    last = time.monotonic() + 20
    while "ucan_under_way 0" in client.metrics() and time.monotonic() < last:
        time.sleep(0.01)
    server.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(30)
    assert server.wait(20) == 0
    assert len(got) == 8 and {status for status, _ in got} <= {"200", "503"} and any(s == "200" for s, _ in got)
    logged = [json.loads(line) for line in server.log.read_text().splitlines()[before:]]
    assert sorted(str(line["status"]) for line in logged if line["path"] == "/v1/certify") == sorted(s for s, _ in got)
