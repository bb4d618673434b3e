#!/usr/bin/env python3
"""Opens reports in headless Chromium, where they check themselves.

    report_browser_test.py WRITE_SAMPLE_REPORT BRAID

Pages of made-up runs, and pages that `braid train`, `braid simulate --report` and `braid report` write. Fails if a page writes
anything to the console, or says that hover, zoom or pan do not work. Exits 77 (ctest: skipped) without Chromium.
"""
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# Arguments of WRITE_SAMPLE_REPORT, tasks and steps: big, usual, a run that recorded nothing, and two runs of each kind.
PAGES = [("200000", "20000"), ("200000", "0", "simulated"), ("600", "700"), ("0", "0"), ("600", "0", "simulated"),
         ("100000", "700", "compare"), ("600", "700", "compare"), ("0", "0", "compare"), ("600", "700", "predicted"),
         ("100000", "0", "both")]

# Communication of three kinds, a pipeline, shards.
RUN = """
[model]
preset = "llama-1b"
layers = 8
[train]
sequence = 2048
microbatch = 1
global_batch = 32
dtype = "bfloat16"
[parallel]
ranks = 16
tensor = 2
sequence_parallel = true
pipeline = 4
shard = "optimizer"
[data]
train = "unused"
"""


def browser():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def open_page(program, page, profile):
    """(DOM after loading, console lines)"""
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
               "--no-first-run", "--disable-extensions", "--enable-logging=stderr", f"--user-data-dir={profile}",
               "--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", f"file://{page}#selfcheck"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=240)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


class ForeignMarkup(html.parser.HTMLParser):
    """Tags of a page that braid never writes: links, pictures, handlers of events."""

    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attrs):
        if tag in ("a", "img") or any(name.startswith("on") for name, _ in attrs):
            self.tags.append(self.get_starttag_text())


def faults_of(program, page, what, profile):
    dom, console = open_page(program, page, profile)
    faults = [f"console: {line}" for line in console]
    foreign = ForeignMarkup()
    foreign.feed(dom)
    faults += [f"a text became markup: {tag}" for tag in foreign.tags]
    result = re.search(r'<pre id="selfcheck"[^>]*>(.*?)</pre>', dom, re.DOTALL)
    if not result:
        faults.append("the page did not check itself")
    elif not re.fullmatch(r"selfcheck: \d+ passed", result[1]):
        faults.append(result[1])
    else:
        print(f"{what}: {result[1]}")
    return [f"{what}: {fault}" for fault in faults]


def sample_pages(writer, folder):
    """(page, what) of made-up runs"""
    for arguments in PAGES:
        page = folder / f"{'-'.join(arguments)}.html"
        subprocess.run([writer, page, *arguments], check=True)
        yield page, " ".join(arguments)


def simulated_pages(braid, folder):
    """(page, what) of a simulated run, of a step on one rank, and of overlap off beside on"""
    (folder / "run.toml").write_text(RUN)

    def simulate(name, *settings):
        command = [braid, "simulate", "run.toml", "--cluster", "h200x16", "--report", name]
        subprocess.run(command + [word for setting in settings for word in ("--set", setting)], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)
        return folder / name / "report.html", f"simulate, {name}"

    yield simulate("on")
    yield simulate("off", "overlap.mode=off")
    yield simulate("alone", "parallel.ranks=1", "parallel.tensor=1", "parallel.sequence_parallel=false",
                   "parallel.pipeline=1", "parallel.shard=none", "train.global_batch=2")
    subprocess.run([braid, "report", "off", "--compare", "on"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    yield folder / "off" / "compare.html", "simulate, off and on"


# Code that a foreign report.json may carry. In a picture it would run: page errors fail the test.
HOSTILE = "<script>throw 1</script><img src=x onerror='throw 2'><a href='javascript:throw 3'>a</a>"


def hostile_page(braid, folder):
    """(page, what) of a run whose report.json was not written by braid"""
    path = folder / "on" / "report.json"
    run = json.loads(path.read_text())
    run["schedule"] = HOSTILE + run["schedule"].replace("<rect ", "<rect onload='throw 4' ", 1).replace("</svg>", HOSTILE + "</svg>")
    for place in ("title", "model", "config"):
        run["data"][place] = HOSTILE
    for rank in run["timeline"]["ranks"]:
        rank["names"] = [HOSTILE] * len(rank["names"])
        rank["remark"] = HOSTILE
    (folder / "hostile.json").write_text(json.dumps(run))
    subprocess.run([braid, "report", "hostile.json", "--out", "hostile.html"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    yield folder / "hostile.html", "a hostile report.json"


# Seconds of training.
SMALL_RUN = """
[model]
family = "llama"
layers = 2
width = 32
heads = 2
[train]
sequence = 32
microbatch = 1
global_batch = 2
steps = 3
[parallel]
ranks = 2
[data]
train = "text.txt"
tokenizer = "bytes"
[logging]
run_folder = "small"
trace_steps = [2]
"""


def measured_pages(braid, folder):
    """(page, what) of a run that trained, and of it beside a prediction"""
    (folder / "small.toml").write_text(SMALL_RUN)
    (folder / "text.txt").write_text("to be predicted, byte by byte\n\n" * 200)
    for command in (["train", "small.toml"], ["report", "small", "--cost", "cpux2"]):
        subprocess.run([braid, *command], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    yield folder / "small" / "report.html", "train"
    yield folder / "small" / "prediction.html", "train, and a prediction"


def main():
    program = browser()
    if program is None:
        print("skipped: no Chromium on this machine (scripts/setup.sh --dev installs it)")
        return 77
    with tempfile.TemporaryDirectory(prefix="braid-report-") as folder:
        folder = pathlib.Path(folder)
        pages = [*sample_pages(sys.argv[1], folder), *simulated_pages(sys.argv[2], folder), *hostile_page(sys.argv[2], folder),
                 *measured_pages(sys.argv[2], folder)]
        faults = [fault for page, what in pages for fault in faults_of(program, page, what, folder / "profile")]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
