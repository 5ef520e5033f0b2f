"""A headless Chromium for tests of pages, driven by its DevTools protocol.

The protocol is spoken over two pipes, so nothing has to be installed beside
the browser.
"""

import json
import os
import re
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

#: Starts the program with two pipes as its files 3 and 4.
_START = """
import fcntl, os, sys
first, second = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10)
                 for word in sys.argv[1:3])
os.dup2(first, 3)
os.dup2(second, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find():
  """The path of a browser, or None."""
  return next(filter(None, map(shutil.which, NAMES)), None)


def page_data(path):
  """The numbers in a page of ``experiments.reports.page``."""
  (found,) = re.findall(
      r'<script id="data" type="application/json">(.*?)</script>',
      path.read_text("utf-8"))
  return json.loads(found)


class Browser:
  """One page of a browser that cannot reach any host.

  Attributes:
    requests: addresses of all requests but those for files and inline data.
    errors: messages of errors in the page, refused requests among them.
  """

  def __init__(self, program, profile, seconds=60):
    """Starts the browser.

    Args:
      program: its path.
      profile: an empty folder.
      seconds: how long to wait for anything.
    """
    theirs, self._write = os.pipe()
    self._read, their_write = os.pipe()
    self._process = subprocess.Popen(
        [sys.executable, "-ISc", _START, str(theirs), str(their_write), program,
         "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-dev-shm-usage",
         "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1400,1000",
         f"--user-data-dir={profile}", "--remote-debugging-pipe"],
        pass_fds=(theirs, their_write), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(theirs)
    os.close(their_write)
    self._seconds, self._buffer, self._number = seconds, b"", 0
    self._session, self._loaded = None, False
    self.requests, self.errors = [], []
    try:
      self._attach()
    except BaseException:
      self.close()
      raise

  def _attach(self):
    target = self.send("Target.createTarget", url="about:blank")["targetId"]
    self._session = self.send(
        "Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
      self.send(f"{domain}.enable")

  def close(self):
    """Ends the browser."""
    self._process.kill()
    self._process.wait()
    os.close(self._write)
    os.close(self._read)

  def _message(self):
    end = time.monotonic() + self._seconds
    while b"\0" not in self._buffer:
      if not select.select(
          [self._read], [], [], max(end - time.monotonic(), 0))[0]:
        raise TimeoutError("the browser says nothing")
      more = os.read(self._read, 1 << 20)
      if not more:
        raise EOFError("the browser has ended")
      self._buffer += more
    text, self._buffer = self._buffer.split(b"\0", 1)
    return json.loads(text)

  def _note(self, message):
    what, of = message.get("method"), message.get("params", {})
    if what == "Page.loadEventFired":
      self._loaded = True
    elif what == "Network.requestWillBeSent":
      url = of["request"]["url"]
      if not url.startswith(("file:", "data:", "blob:")):
        self.requests.append(url)
    elif what == "Runtime.exceptionThrown":
      self.errors.append(json.dumps(of["exceptionDetails"]))
    elif what == "Log.entryAdded" and of["entry"]["level"] == "error":
      self.errors.append(of["entry"]["text"])
    elif what == "Runtime.consoleAPICalled" and of["type"] == "error":
      self.errors.append(json.dumps(of["args"]))

  def send(self, method, **params):
    """Sends a command and returns its result."""
    self._number += 1
    command = {"id": self._number, "method": method, "params": params}
    if self._session:
      command["sessionId"] = self._session
    os.write(self._write, json.dumps(command).encode() + b"\0")
    while True:
      message = self._message()
      if message.get("id") != self._number:
        self._note(message)
        continue
      if "error" in message:
        raise RuntimeError(f"{method}: {message['error']}")
      return message["result"]

  def open(self, path):
    """Opens a file and waits until it is loaded."""
    self._loaded = False
    self.send("Page.navigate", url=path.resolve().as_uri())
    while not self._loaded:
      self._note(self._message())

  def evaluate(self, script):
    """The value of an expression in the page."""
    found = self.send("Runtime.evaluate", expression=script, returnByValue=True,
                      awaitPromise=True)
    if "exceptionDetails" in found:
      raise RuntimeError(json.dumps(found["exceptionDetails"]))
    return found["result"].get("value")

  def wait(self, script):
    """Waits until an expression in the page is true."""
    end = time.monotonic() + self._seconds
    while not self.evaluate(script):
      assert time.monotonic() < end, f"never true: {script}"
      time.sleep(0.05)

  def middle(self, script):
    """The middle of the element that an expression gives."""
    return self.evaluate(
        f"(() => {{const e = {script}; e.scrollIntoView({{block: 'center'}});"
        "const r = e.getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2];})()")

  def drag(self, start, end):
    """Presses the mouse at a point and releases it at another."""
    for kind, (x, y), button in (
        ("mouseMoved", start, "none"), ("mousePressed", start, "left"),
        ("mouseMoved", end, "left"), ("mouseReleased", end, "left")):
      self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button,
                clickCount=1)

  def click(self, script):
    """Clicks on the element that an expression gives."""
    point = self.middle(script)
    self.drag(point, point)
