"""Makes a card of a finished run, and an RO-Crate for archives.

  python -m experiments.card out/fedavg_digits

To describe a run on one page, give its folder. You get card.md in the folder, with
the method, the data, the results and the command that runs it again.

If you want to archive the folder, for example at Zenodo or WorkflowHub, add
--crate. You then also get ro-crate-metadata.json, which describes every
file of the folder with its hash. It is an RO-Crate and
needs the package rocrate (pip install 'fedjax_alg[crate]').
"""

from collections.abc import Mapping, Sequence
import importlib.util
import pathlib
import shlex
import sys
import tempfile
from typing import Any

from absl.flags import FlagValues

import fedjax_alg as fa
from fedjax_alg import files, metrics, registry
from fedjax_alg.files import expand_path
from fedjax_alg.metrics import names
from fedjax_alg.records import lock, tables
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.runs import texts

from .cli import presets
from .cli.command import Command, boolean, explain_write_errors
from .cli.config import UsageError
from .reports import markdown

CARD, CRATE = "card.md", "ro-crate-metadata.json"

#: Recognizers of an earlier card and an earlier crate.
_EARLIER = {
  CARD: files.text_with("# ", "\n## What came out\n", "Identity of the run: `"),
  CRATE: files.text_with("{", '"#fedjax_alg"', '"ro-crate-metadata.json"'),
}


def _label(result: fa.RunResult) -> tuple[str, str]:
  """(name, paper) of the method; of the caller's own, its name alone."""
  name = result.facts["algorithm"]
  if name in registry.ALGORITHMS:
    info = registry.get(name)
    return info.label, info.paper
  return name, ""


def _rerun_command(folder: pathlib.Path) -> str:
  """The command that runs it again; "" for a run that Python started."""
  path = folder / "flags.txt"
  if not path.is_file():
    return ""
  words = presets.load_preset(str(path)).words  # without the quotes of its lines
  return shlex.join(["fedjax-alg", "run", *words])


def _outcomes(summary: dict[str, Any]) -> str:
  """The table of what came out, by protocol."""
  rows = []
  for protocol, values in summary["final"].items():
    main = tables.main_metric(values)
    for metric in (main, *names.of_clients(main), "loss"):
      if values.get(metric, {}).get("mean") is not None:
        factor = metrics.factor(metric)
        digits = metrics.digits(metric)
        rows.append(
          [
            protocol,
            texts.markdown_text(
              metric.replace("_", " ") + ("" if factor == 1 else ", %")
            ),
            *(
              metrics.format_estimate(summary[which][protocol][metric], digits, factor)
              for which in ("final", "mean_last_10")
            ),
          ]
        )
  return markdown.table(
    ["protocol", "metric", "last round", "mean of the last ten"], rows
  )


def _revisions(facts: Mapping[str, Any]) -> str:
  """What has been done to the run since it ended; "" for nothing."""
  verbs = {"forget": "forgotten", "add": "added"}
  return "\n".join(
    "- "
    + texts.markdown_text(
      f"{revision['time'][:10]}: clients {', '.join(map(str, revision['clients']))} "
      f"{verbs[revision['action']]}"
    )
    for revision in facts.get("revisions", ())
  )


def _run_page(result: fa.RunResult, folder: pathlib.Path) -> str:
  """The page of a run.

  Args:
    result: the run.
    folder: its folder.

  Returns:
    Markdown.
  """
  facts, summary = result.facts, result.summary()
  label, paper = _label(result)
  plan, cost = facts["plan"], summary["cost"]
  partition = facts["data"]["partition"]
  if partition is None:  # by default the clients of the data, if these have any
    partition = files.read_json(folder / "partition.json")["name"]
  rerun_command = _rerun_command(folder)
  settings = markdown.table(
    ["option", "value"],
    (
      [texts.markdown_text(name), texts.markdown_text(str(value))]
      for name, value in facts["hparams"].items()
    ),
  )
  spent = markdown.table(
    ["what", "mean over the seeds"],
    (
      [name.replace("total_", "").replace("_", " "), f"{entry['mean']:,.6g}"]
      for name, entry in cost.items()
      if isinstance(entry, dict) and entry.get("mean") is not None
    ),
  )
  hashes = markdown.table(
    ["what", "sha256"],
    (
      [name.replace("_", " "), f"`{value}`"]
      for name, value in (*summary["hashes"].items(), *summary.get("files", {}).items())
    ),
  )
  versions = ", ".join(f"{k} {v}" for k, v in summary["versions"].items())
  name, data = texts.markdown_text(label), texts.markdown_text(str(plan["data"]))
  return markdown.page(
    f"{name} on {data}",
    [
      f"{name}{f' ({paper})' if paper else ''}: {cost['rounds']} rounds, "
      f"{plan['cohort_size']} of {plan['clients']:,} clients a round, model "
      f"{texts.markdown_text(str(facts['model']))} with {plan['parameters']:,} "
      "parameters, "
      f"{len(facts['seeds'])} seed{'s' * (len(facts['seeds']) != 1)} "
      f"({', '.join(map(str, facts['seeds']))})."
      + (
        ""
        if summary["stopped"] == "rounds"
        else f" It ended early: {summary['stopped']}."
      ),
      _revisions(facts),
      "## What came out\n\n"
      + _outcomes(summary)
      + "\n\nMean +- half-width of the 95 % interval over the seeds.",
      "## Data\n\n" + f"{data}: {plan['train_examples']:,} training, "
      f"{plan['validation_examples']:,} validation and "
      f"{plan['test_examples']:,} test examples in {plan['classes']} classes; "
      f"a client has {plan['client_size']['min']:,} to "
      f"{plan['client_size']['max']:,}, {plan['client_size']['mean']:g} on "
      f"average (partition {texts.markdown_code(partition)}, seed "
      f"{facts['data']['partition_seed']}).",
      "## Cost\n\n" + spent,
      f"## Run it again\n\n```bash\n{rerun_command}\n```" if rerun_command else "",
      f"## Made with\n\n{versions}; {summary['device']}. Identity of the run: "
      f"`{summary['identity']}`.",
      markdown.collapse("Settings of the method", settings),
      markdown.collapse("Hashes", hashes),
    ],
  )


def _describe(path: pathlib.Path) -> dict[str, Any]:
  """Describes a file for the crate."""
  kinds = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".md": "text/markdown",
    ".png": "image/png",
    ".pdf": "application/pdf",
    ".txt": "text/plain",
  }
  properties = {
    "name": path.name,
    "contentSize": str(path.stat().st_size),
    "sha256": files.sha256(path),
  }
  if path.suffix in kinds:
    properties["encodingFormat"] = kinds[path.suffix]
  return properties


def _crate(result: fa.RunResult, folder: pathlib.Path) -> Any:
  """The RO-Crate of a run's folder.

  Args:
    result: the run.
    folder: its folder, with its card.

  Returns:
    A ``rocrate.rocrate.ROCrate`` that is not written.
  """
  from rocrate.model.contextentity import ContextEntity  # an extra
  from rocrate.model.softwareapplication import SoftwareApplication
  from rocrate.rocrate import ROCrate

  summary = result.summary()
  label, paper = _label(result)
  ro_crate = ROCrate()
  ro_crate.name = f"{label} on {result.facts['plan']['data']}"
  ro_crate.description = (
    f"A run of federated learning by fedjax_alg: {label}"
    f"{f' ({paper})' if paper else ''}, {summary['cost']['rounds']} rounds."
  )
  outputs = [
    ro_crate.add_file(path, dest_path=path.name, properties=_describe(path))
    for path in sorted(folder.iterdir())
    if path.is_file() and path.name not in (CRATE, lock.NAME)
  ]
  program = ro_crate.add(
    SoftwareApplication(
      ro_crate,
      "#fedjax_alg",
      properties={
        "name": "fedjax_alg",
        "softwareVersion": summary["versions"]["fedjax_alg"],
        "softwareRequirements": ", ".join(
          f"{k} {v}" for k, v in summary["versions"].items()
        ),
      },
    )
  )
  data = ro_crate.add(
    ContextEntity(
      ro_crate,
      "#data",
      properties={
        "@type": "Dataset",
        "name": result.facts["plan"]["data"],
        "sha256": summary["hashes"]["data"],
      },
    )
  )
  ro_crate.add_action(
    program,
    identifier="#run",
    object=[data],
    result=outputs,
    properties={
      "name": _rerun_command(folder) or "fa.run",
      "actionStatus": "CompletedActionStatus",
    },
  )
  return ro_crate


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Writes the card."""
  del argv
  if len(words) != 1:
    raise UsageError("give the folder of one run, e.g. out/first")
  if values.crate and importlib.util.find_spec("rocrate") is None:
    raise UsageError(
      "--crate: needs the package rocrate (pip install 'fedjax_alg[crate]')"
    )
  folder = expand_path(words[0])
  result = fa.load_run(folder)
  files.check_outputs(
    str(folder),
    {folder / name: _EARLIER[name] for name in (CARD, *[CRATE] * values.crate)},
  )
  with explain_write_errors(str(folder)):
    summary_lib.write_text(folder / CARD, _run_page(result, folder))
    if values.crate:
      with tempfile.TemporaryDirectory() as place:  # it writes through links
        _crate(result, folder).metadata.write(place)
        summary_lib.write_text(
          folder / CRATE, files.read_text(pathlib.Path(place) / CRATE)
        )
  print(f"wrote {folder / CARD}")
  if values.crate:
    print(f"wrote {folder / CRATE}")


main = Command("card", __doc__, (boolean("crate", False, f"also write {CRATE}"),), _run)

if __name__ == "__main__":
  sys.exit(main())
