#!/usr/bin/env python3
"""Opens reports in headless Chromium, where they check themselves.

    report_browser_test.py WRITE_SAMPLE_REPORT

Fails if a page writes anything to the console, or says that hover, zoom or pan do not work. Exits 77 (ctest: skipped)
without Chromium.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# Arguments of WRITE_SAMPLE_REPORT, tasks and steps: big, usual, a run that recorded nothing, and two runs of each kind.
PAGES = [("200000", "20000"), ("600", "700"), ("0", "0"), ("100000", "700", "compare"), ("600", "700", "compare"),
         ("0", "0", "compare")]


def browser():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def open_page(program, page, profile):
    """(DOM after loading, console lines)"""
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
               "--no-first-run", "--disable-extensions", "--enable-logging=stderr", f"--user-data-dir={profile}",
               "--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", f"file://{page}#selfcheck"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=240)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def faults_of(program, writer, folder, arguments):
    what = " ".join(arguments)
    page = folder / f"{'-'.join(arguments)}.html"
    subprocess.run([writer, page, *arguments], check=True)
    dom, console = open_page(program, page, folder / "profile")
    faults = [f"console: {line}" for line in console]
    result = re.search(r'<pre id="selfcheck"[^>]*>(.*?)</pre>', dom, re.DOTALL)
    if not result:
        faults.append("the page did not check itself")
    elif not re.fullmatch(r"selfcheck: \d+ passed", result[1]):
        faults.append(result[1])
    else:
        print(f"{what}: {result[1]}")
    return [f"{what}: {fault}" for fault in faults]


def main():
    program = browser()
    if program is None:
        print("skipped: no Chromium on this machine (scripts/setup.sh --dev installs it)")
        return 77
    with tempfile.TemporaryDirectory(prefix="braid-report-") as folder:
        faults = [fault for page in PAGES for fault in faults_of(program, sys.argv[1], pathlib.Path(folder), page)]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
