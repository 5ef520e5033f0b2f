"""Clients leave a finished run in closed form, or come late to it.

The model of a method in closed form depends on the sums of its clients alone
(``rounds.closed_form``). ``forget`` subtracts the sums of some clients and
solves again, ``add_clients`` adds them: the result is that of a run in which they never
took part, or did. Nobody but these clients computes or sends anything.

Source: the algebra is that of the analytic paper, (3)-(5), and of AFL's
aggregation (He et al., CVPR 2025). "Exact Federated Continual Unlearning for
Ridge Heads" (arXiv:2603.12977) states it for unlearning.
"""

from collections.abc import Iterable, Sequence
import copy
import datetime
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.data import client_names as names_lib
from fedjax_alg.data import layout
from fedjax_alg.engine.round import PRESENT
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import HParams
from fedjax_alg.records import tables
from fedjax_alg.records.tables import Records
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.play import NonFiniteError
from fedjax_alg.runs.result import Live, RunResult, check_result, measure_final
from fedjax_alg.typing import Facts

#: Signs of the sums of the clients, by what happens to them.
FORGET, ADD = -1, 1
#: The fact of config.json that lists what has been done to the run since.
REVISIONS = "revisions"


#: The name of a client, or those of several (``Federation.client_names``).
Clients = int | str | Iterable[int | str]


def forget(result: RunResult, clients: Clients, *, refit: bool = False) -> RunResult:
  """Removes clients from a finished run in closed form.

  You get the model as if they had never taken part, up to the rounding of float64.
  The run must have stored its sums (``store_sums=True``). The leaving clients compute
  their sums again, from the data that they had. The server subtracts these and solves
  again. The first layer of a network follows exactly from the sums. The later layers
  depend on the outputs of the first one, and with ``refit`` the remaining clients fit
  them again.

  Args:
    result: a finished run of a method in closed form, in memory or loaded.
    clients: the names of the clients (``RunResult.client_names``), texts or whole
      numbers; one, several, or a text with commas between names.
    refit: whether the server may ask the remaining clients to fit later layers again;
      only read if there are some.

  Returns:
    The run with another line in its tables: the messages of the leaving clients,
    and the metrics of the model without them. Each layer that was fitted again has
    another line. ``facts["revisions"]`` has all changes with their times; ``save``
    writes it.

  Raises:
    OptionError: the method is not in closed form, is private, or has stored no
      sums; there is no client of a name, it is given twice, or is not in the sums;
      nobody with training rows would be left, so that there is nothing to make a
      model of; or later layers would have to be fitted again and ``refit`` is false.
    NonFiniteError: the equations of those who are left have no solution.
    RunFolderError: see ``RunResult.client_params``.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", partition="classes", num_clients=20)
    >>> fit = fa.run("fedacnnl", fed, store_sums=True)
    >>> smaller = fa.forget(fit, clients=[3, 17])
    >>> [row["floats_down"] for row in smaller.records.tables["rounds"]]
    [650, 0]
  """
  return _revise(result, clients, FORGET, refit)


def add_clients(
  result: RunResult, clients: Clients, *, refit: bool = False
) -> RunResult:
  """Adds clients to a finished run in closed form.

  You get the model as if they had taken part, too. The clients were forgotten, or
  they joined the federation after the round in which sums are sent
  (``newcomers_at``). This is the inverse of ``forget``.

  Args:
    result: see ``forget``.
    clients: see ``forget``.
    refit: see ``forget``; whether all clients may be asked.

  Returns:
    See ``forget``.

  Raises:
    OptionError: see ``forget``; or the sums already have a client.
    RunFolderError: see ``RunResult.client_params``.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", partition="classes", num_clients=20)
    >>> fit = fa.run("fedacnnl", fed, store_sums=True)
    >>> again = fa.add(fa.forget(fit, clients=3), clients=3)
    >>> weights, first = again.global_params(), fit.global_params()
    >>> all(jax.tree.leaves(jax.tree.map(np.allclose, weights, first)))
    True
  """
  return _revise(result, clients, ADD, refit)


def _revise(result: RunResult, clients: Clients, sign: int, refit: bool) -> RunResult:
  """``forget`` or ``add_clients``."""
  check_result(result)
  refuse_others(result.facts)
  live = result._state()
  federation = live.prepared.federation
  ids, names = federation.positions(clients), federation.client_names
  solved = solved_steps(live.states)
  if not solved:
    raise OptionError("`clients`: no step has been solved yet, there are no sums")
  inside = np.asarray(jax.device_get([step.clients for step in live.states.sums]))
  inside = inside[:solved]
  check_clients(result.facts, np.any(inside, axis=(0, 1)), names, ids, sign)
  if sign == FORGET:
    check_rest(inside & (federation.data.train.size > 0), names, ids)
  hparams = live.prepared.settings[live.setting].hparams
  first = first_step(hparams, inside, ids, sign)
  if first + 1 < solved and not refit:
    raise OptionError(why_refit(first, solved, names[ids], sign))
  moved = live.with_states(_new_states(live, ids, sign, first, solved))
  check_finite(moved.states, live.prepared.method, "those who are left")
  return _with_rows(result, moved, ids, sign, range(first, solved))


def check_rest(inside: np.ndarray, names: np.ndarray, ids: Sequence[int]) -> None:
  """Refuses to forget everybody of whom a total is made.

  A total without examples has no solution: in a round the part of the model stays
  what it is at the start (``rounds.closed_form``). Here it would stay what it has
  learnt from those who leave.

  Args:
    inside: [..., C] bool, whose examples the totals have, for example of each step
      and seed.
    names: [C] strings, the names of the clients.
    ids: the positions of the clients who leave.

  Raises:
    OptionError: nobody is left in a total.
  """
  stay = inside.copy()
  stay[..., list(ids)] = False
  if (inside.any(-1) & ~stay.any(-1)).any():
    raise OptionError(
      f"`clients`={names_lib.join_names(names[list(ids)])}: hold all training examples "
      "of the model, so that nothing is left to make a model of (delete the run, or "
      "leave somebody in it)"
    )


def check_finite(state: Any, method: Method, others: str) -> None:
  """Refuses models without a solution.

  Args:
    state: the state of the server, or those of several seeds.
    method: the method.
    others: see ``no_solution``.

  Raises:
    NonFiniteError: a model is NaN or infinite.
  """
  models = jax.tree.leaves(jax.device_get(state.models))
  if not all(np.isfinite(leaf).all() for leaf in models):
    raise no_solution(method, others)


def no_solution(method: Method, others: str) -> NonFiniteError:
  """Makes the error for a total that has no solution, as of a singular matrix.

  Args:
    method: the method.
    others: whose total it is, for the message.
  """
  hint = method.entry.nonfinite if method.is_registered else ""
  return NonFiniteError(
    f"the equations of {others} have no solution" + (f": {hint}" if hint else "")
  )


def refuse_others(facts: Facts) -> None:
  """Refuses runs whose clients cannot be subtracted, by their facts.

  Raises:
    OptionError: the method has no sums, or has not stored them.
  """
  method, hparams = facts["algorithm"], facts["hparams"]
  if hparams.get("private", "none") != "none":
    raise OptionError(
      f"`algorithm`={method}: the run is private; its noised sums are released, and "
      "forgetting a client gives no epsilon back"
    )
  if "store_sums" not in hparams:
    raise OptionError(
      f"`algorithm`={method}: not in closed form, so a client cannot be subtracted "
      "from the model; run it again without the client"
    )
  if not hparams["store_sums"]:
    raise OptionError(
      "`store_sums`: the run has not stored its sums, from which clients are "
      "subtracted (run it with `store_sums` true)"
    )


def solved_steps(state: Any) -> int:
  """The number of steps that have been solved."""
  return min(int(np.min(jax.device_get(state.round))), len(state.sums))


def check_clients(
  facts: Facts, inside: np.ndarray, names: np.ndarray, ids: Sequence[int], sign: int
) -> None:
  """Checks that clients are in the sums to be forgotten, or not to be added.

  Args:
    facts: the content of config.json.
    inside: [C] bool, whose sums a total holds.
    names: [C] strings, the names of the clients.
    ids: the positions of the clients.
    sign: ``FORGET`` or ``ADD``.

  Raises:
    OptionError: one is not.
  """
  forgotten = {
    str(client)
    for revision in facts.get(REVISIONS, ())
    if revision["action"] == "forget"
    for client in revision["clients"]
  }
  for client in ids:
    name = names[client]
    if sign == ADD and inside[client]:
      raise OptionError(f"`clients`={name}: is in the sums already")
    if sign == FORGET and not inside[client]:
      raise OptionError(
        f"`clients`={name}: "
        + ("is forgotten already" if name in forgotten else "never took part")
      )


def first_step(
  hparams: HParams, inside: np.ndarray, ids: Sequence[int], sign: int
) -> int:
  """The first step whose solution the clients change.

  Args:
    hparams: those of the method.
    inside: [steps, N, C] bool, whose sums the totals hold.
    ids: the clients.
    sign: ``FORGET`` or ``ADD``.
  """
  if sign == ADD or getattr(getattr(hparams, "code", None), "centred", False):
    return 0
  return int(np.argmax(inside[..., list(ids)].any((1, 2))))


def why_refit(first: int, solved: int, names: Iterable[str], sign: int) -> str:
  """Says in one line why later layers have to be fitted again."""
  single = first + 2 == solved
  layers = f"layer {solved} reads" if single else f"layers {first + 2} to {solved} read"
  verb = "forgotten" if sign == FORGET else "added"
  return (
    f"`refit`: {names_lib.join_names(names)} can be {verb} exactly in layer "
    f"{first + 1} alone; {layers} what it gives out, so that the other clients are "
    "asked again (allowed with `refit` true)"
  )


def _new_states(
  live: Live, ids: Sequence[int], sign: int, first: int, solved: int
) -> Any:
  """The states of all seeds without the clients, or with them."""
  p, num = live.prepared, len(live.prepared.seeds)
  last_round = int(np.max(jax.device_get(live.states.round)))
  rows = []
  for seed in range(num):
    state = jax.tree.map(lambda leaf, seed=seed: leaf[seed], live.states)
    for step in range(first, solved):
      p.device_data.move(step)  # the data that the clients had in that round
      if step == first:
        leaving = np.array(ids, np.int32)
        data = p.device_data.train_with(leaving)
        state = _revised(live)(state, data, leaving, step, sign)
      else:
        who = np.array(jax.device_get(state.sums[step].clients))
        who[list(ids)] = sign == ADD
        slots = np.where(who, np.arange(len(who)), len(who)).astype(np.int32)
        data = p.device_data.train_with(np.flatnonzero(who))
        key = jax.random.fold_in(p.keys.work[live.setting * num + seed], step)
        state = _played_again(live)(state, data, slots, np.int32(step), key)
    rows.append(state)
  p.device_data.move(last_round - 1)
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def _revised(live: Live) -> Any:
  """The jitted (state, data, ids, step, sign) -> ``Algorithm.revise``."""
  if "revise" not in live.programs:

    @functools.partial(jax.jit, static_argnames=("step", "sign"))
    def program(state, data, ids, step, sign):
      revise = live.algorithm(data.frozen).revise
      assert revise is not None
      return revise(state, layout.take_cohort(data, ids), step, sign)

    live.programs["revise"] = program
  return live.programs["revise"]


def _played_again(live: Live) -> Any:
  """The jitted (state, data, ids, step, key) -> the state with this step anew."""
  if "round" not in live.programs:

    @jax.jit
    def program(state, data, ids, step, key):
      algorithm = live.algorithm(data.frozen)
      new, _ = algorithm.round(
        state._replace(round=step), layout.take_cohort(data, ids), key
      )
      # The clock of the simulated machines is not that of the first time.
      return new._replace(
        round=state.round, batch=state.batch, fastest=state.fastest, member=state.member
      )

    live.programs["round"] = program
  return live.programs["round"]


def _with_rows(
  result: RunResult, live: Live, ids: Sequence[int], sign: int, steps: range
) -> RunResult:
  """The run after the clients have left or come, with what that has cost."""
  p = live.prepared
  counts, sums = live.evaluate(live.states)
  records = _copy_records(result.records)
  inside = np.asarray(jax.device_get(live.states.sums[steps[-1]].clients)).sum(1)
  for step in steps:
    first = step == steps[0]
    _add_row(records, step, [len(ids)] * len(inside) if first else inside, first)
  before = records.tables["timing"][-1]
  last = records.tables["rounds"][-1]["round"]
  records.tables["timing"].append({"round": last, "seconds": before["seconds"]})
  counts = {protocol: counts[protocol] for protocol in p.protocols}
  records.add_metrics(tables.metric_values(counts, tasks.of(p.model)))
  final = measure_final(
    live,
    {name: of.clients for name, of in counts.items() if of.clients is not None},
    None,
  )
  measures = result._final.get("measures", {})
  final["measures"] = {
    name: jax.tree.map(
      lambda old, new: np.concatenate([old, np.asarray(new)[:, None]], axis=1),
      of,
      sums[name],
    )
    for name, of in measures.items()
  }
  return RunResult(records, final, _new_facts(result, ids, sign, steps), live)


def _new_facts(
  result: RunResult, ids: Sequence[int], sign: int, steps: range
) -> dict[str, Any]:
  """config.json of the run, with what has been done to it."""
  revision = {
    "action": "forget" if sign == FORGET else "add",
    "clients": result.prepared.federation.client_names[list(ids)].tolist(),
    "refitted_layers": [step + 1 for step in steps[1:]],
    "of_state": result.state_hash(),
    "of_run": None if (folder := result.folder) is None else str(folder),
    "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
  }
  facts = {name: value for name, value in result.facts.items() if name != "sha256"}
  return facts | {
    "identity": None,  # no command goes on from here
    REVISIONS: [*facts.get(REVISIONS, ()), revision],
  }


def _copy_records(records: Records) -> Records:
  """Tables that can grow while those of the run stay as they are."""
  new = copy.copy(records)
  new.folder = None
  new.tables = {name: [dict(row) for row in of] for name, of in records.tables.items()}
  new.columns = dict(records.columns)
  if PRESENT not in new.columns["rounds"]:
    new.columns["rounds"] = (*new.columns["rounds"], PRESENT)
    for row in new.tables["rounds"]:
      row[PRESENT] = records.cohort
  return new


def _add_row(
  records: Records, step: int, participants: Sequence[int], first: bool
) -> None:
  """Adds what a step has cost that was solved again, a row for each seed."""
  rounds = records.tables["rounds"]
  last = rounds[-1]["round"]
  rows = []
  for seed, number in zip(records.seeds, participants):
    old, before = (
      next(r for r in rounds if r["seed"] == seed and r["round"] == at)
      for at in (step + 1, last)
    )
    row = dict(old) | {"round": last + 1, PRESENT: int(number)}
    row |= {name: before[name] for name in tables.TOTALS}
    row |= {"client_flops": float("nan"), **dict.fromkeys(tables.SIMULATED, 0.0)}
    if first:
      row |= {"floats_down": 0, "bytes_down": 0}
    for unit in ("floats", "bytes"):
      sent = row[f"{unit}_down"] + row[f"{unit}_up"]
      row[f"total_{unit}"] += row[PRESENT] * sent
    row["total_bytes_up"] += row[PRESENT] * row["bytes_up"]
    row["total_central_flops"] += row["central_flops"]
    rows.append(row)
  rounds += rows
