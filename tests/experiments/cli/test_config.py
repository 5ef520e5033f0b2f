"""Flags: what is refused, in one line; presets; replay; help."""

import re

import pytest

from experiments import run
from experiments.cli import config, flags, presets, sweeps
from experiments.cli.config import UsageError, parse_config
from fedjax_alg import errors, models, registry
from fedjax_alg.data.datasets import DATASETS, Femnist, Shakespeare
from fedjax_alg.data.options import PARTITIONS
from fedjax_alg.data.published import Natural
from fedjax_alg.exchange.aggregation import Krum
from fedjax_alg.part import parts_of
from fedjax_alg.runs import identity
from tests.each import each
from tests.experiments import shown

pytestmark = pytest.mark.fast

#: Words on the command line -> what the one line names, parts of it at " & ".
#: Without another algorithm they are of FedAvg. What an option refuses by its
#: own value is in tests/runs/test_options.py and tests/data/test_options.py.
REFUSED = [
  ("--algorithm=", "--algorithm"),
  ("--algorithm=fedvg", "--algorithm=fedvg & did you mean 'fedavg'"),
  ("--algorithm=mine.py", "--algorithm=mine.py: a file needs the name"),
  ("--algorithm=scaffold_adam", "--client_update=scaffold with --server=ad"),
  ("--beta1=0.5", "--beta1 & fedavg & ma_fsvrg"),
  ("--algorithm=central --participation=0.1", "--participation & central"),
  ("--algorithm=afl --model=mlp", "--algorithm=afl & --model=softmax"),
  # How flags are written.
  ("--rounds=many", "--rounds=many: must be a whole number"),
  ("--client_clip=abc", "--client_clip=abc: must be a number"),
  ("--overwrite=when", "--overwrite=when: must be true or"),
  ("--client_lrr=1", "--client_lrr: unknown flag, did you mean 'client_lr'? & --help"),
  ("--lr=1", "--lr: unknown flag, did you mean 'client_lr'? & --help"),
  ("--num_round=1", "--num_round: unknown flag, did you mean 'rounds'? & --help"),
  ("--learning_rates=1", "--learning_rates: unknown flag & 'client_lr'?"),
  ("--num_epoch=1", "--num_epoch: unknown flag & 'local_epochs'?"),
  ("--num_gpus=1", "--num_gpus: unknown flag; JAX takes the accelerator & --help"),
  ("--client_lr -1", "--client_lr=-1"),
  ("--alpha=0.1", "--alpha: fedavg does not read it & 'partition'?"),
  ("stray", "'stray'"),
  ("--undefok=nosuch --nosuch=1", "--undefok=nosuch"),
  ("--overwrite yes", "'yes': not a flag"),
  ("--out_dir --overwrite", "--out_dir: has no value; must be --out_dir=VALUE"),
  ("--resume", "--resume: unknown flag; the same command again & --out_dir & --help"),
  ("--resume=true", "--resume: unknown flag; the same command again"),
  ("--out_dir=", "--out_dir=: empty"),
  ("--out_dir=a\0b", r"--out_dir=a\x00b: must be printable"),
  ("--out_dir=a\nb", "--out_dir=a b: must be printable text"),
  ("--targets=a\r=b", "must be a list such as a,b,c"),
  ("--out_dir=\udcff", r"--out_dir=\udcff: must be printable text"),
  ("--out_dir=" + "a" * 256, "no path; its names have at most 255 bytes"),
  ("--out_dir=" + "a/" * 2049, "no path;"),
  ("--model=stack:dense" + "9" * 5000, "at most 1,000,000,000"),
  ("--model=stack:" + "dense2," * 200 + "dense2", "layers has 201 layers"),
  ("--model=mlp:" + "2," * 100 + "2", "hidden has 101 layers"),
  ("--flagfile", "--flagfile: must be --flagfile=FILE"),
  ("--flagfile=nowhere.flags", "nowhere.flags"),
  ("--flagfile=~nosuchuser/x", "--flagfile=~nosuchuser/x & user"),
  ("--targets=0.9,high", "--targets"),
  ("--device_cores=1,2,3", "--device_cores=1,2,3 & LEAST,MOST"),
  ("--device_cores=1.5,2", "1.5,2 & whole numbers"),
  ("--bandwidth_gbps=1,fast", "--bandwidth_gbps=1,fast & two numbers"),
  ("--newcomers_at=10", "--newcomers_at=10 & COUNT"),
  ("--newcomers_at=1:2:3", "1:2:3 & ROUND:COUNT"),
  ("--newcomers_at=a:b", "a:b & whole numbers"),
  ("--newcomers_at=", "--newcomers_at= & ROUND:COUNT"),
  # Ranges.
  (
    "--num_clients=5",
    "--participation=0.1 (the default): gives 0 of 5 "
    "clients a round; give more than 0.1, or --cohort_size",
  ),
  ("--seed=4294967295 --num_seeds=2", "--num_seeds=2 & 4294967296"),
  ("--bandwidth_gbps=nan,1", "--bandwidth_gbps: has nan & finite"),
  # Clients that are held out, come later, or change.
  (
    "--validation_clients=60 --cohort_size=41",
    "--cohort_size=41 & 40 clients that --validation_clients=60 leaves",
  ),
  (
    "--validation_clients=97",
    "--participation=0.1 & 0 of 3 clients that --validation_clients=97",
  ),
  (
    "--algorithm=ma_fsvrg --num_models=3 --validation_clients=80",
    "--num_models=3 & 20 that --validation_clients=80 leaves",
  ),
  (
    "--server=cg_line_search",
    "--server=cg_line_search & --validation_clients & at least 1",
  ),
  ("--newcomers_at=5:1,100:2", "5:1,100:2 & never join & --rounds=100 & at most 99"),
  ("--participation=1 --newcomers_at=5:1", "leaves 99 of the 100 & at least"),
  ("--algorithm=central --newcomers_at=5:100", "leaves 0 of the 100"),
  ("--validation_clients=50 --newcomers_at=5:46", "leaves 4 of the 50 cl"),
  ("--eval_protocols=newcomers", "--eval_protocols=newcomers & needs --newcomers_at"),
  (
    "--shift=increment:share=.1",
    "--shift & share=.1 & increment & its fields are every",
  ),
  (
    "--shift=swap_all:share=.019",
    "--shift=swap_all:share=0.019 & no pair of 100 clients & at least 0.02",
  ),
  ("--shift=swap_all:100", "--shift=swap_all:100 & every=100 & at most 99"),
  (
    "--algorithm=losac --variant=table --newcomers_at=5:1",
    "--newcomers_at & --variant=table",
  ),
  ("--algorithm=losac --shift=swap_part", "--shift & LoSAC"),
  (
    "--algorithm=fedadmm --client_weights=examples --shift=swap_part",
    "--client_weights=examples & --shift & uniform",
  ),
  (
    "--algorithm=scaffnew --client_weights=examples --shift=swap_part",
    "--client_weights=examples & --shift & uniform",
  ),
  # What two halves read.
  ("--client_update=losac:table --newcomers_at=5:1", "--newcomers_at & --variant"),
  (
    "--client_update=mime:sgd:.5",
    "--client_update=mime:sgd:.5 & '.5' is not of sgd",
  ),
  (
    "--client_update=dyn --grouping=model:3",
    "--num_models=3 & linear term belongs to one model",
  ),
  ("--client_update=losac --grouping=model:2", "--num_models=2 & delayed grad"),
  (
    "--client_update=sgd --grouping=gradient:2",
    "--grouping=gradient & --client_update=sgd & anchor gradients",
  ),
  (
    "--algorithm=losac --variant=table --local_steps=0",
    "--local_steps=0 & --variant=table",
  ),
  (
    "--algorithm=losac --variant=table --batch_size=0",
    "--batch_size=0 & --variant=table",
  ),
  # Data and models.
  (
    "--dataset=npz:~nosuchuser/x",
    "--dataset=npz:~nosuchuser/x & no such user",
  ),
  ("--dataset=kmnist --partition=natural", "kmnist has no client ids"),
  (
    "--dataset=tfds:made/up --model=stack --data_path=/x",
    "--data_path & --dataset & npz:",
  ),
  ("--dataset=sent140", "--model=softmax & --dataset=sent140 & lstm or transformer"),
  (
    "--dataset=sent140 --model=lstm --features=flatten",
    "--features=flatten & only none",
  ),
  ("--dataset=mnist --model=lstm", "--model=lstm & mnist & sent140"),
  (
    "--dataset=shakespeare:/x",
    "--model=softmax & characters & --model=lstm",
  ),
  (
    "--dataset=shakespeare:/x --model=lstm --vocabulary=80",
    "--vocabulary=80 & 80 characters",
  ),
  (
    "--dataset=npz:/x --sequence_length=9",
    "--sequence_length & --dataset & sent140",
  ),
  ("--window_stride=2", "--window_stride & shakespeare"),
  ("--data_dir=/x", "--data_dir & digits"),
  ("--femnist=leaky", "--femnist & --dataset & femnist:leaky"),
  ("--dataset=digits:leaky", "--dataset=digits:leaky & no fields"),
  ("--lstm_widths=8", "--lstm_widths & --model & lstm:256,256"),
  ("--layers=dense4", "--layers & --model & stack:"),
  ("--model=cnn --features=flatten", "cnn & images"),
  (
    "--model=stack --features=flatten",
    "--model=stack & needs images & --features=flatten",
  ),
  (
    "--algorithm=fedacnnl --code=position:1",
    "--code=position:1 & at most 0 & --model=softmax",
  ),
  (
    "--algorithm=fedacnnl --batch_size=513",
    "--batch_size=513 & at most 512 & --adaptive_batch=up_to",
  ),
]


@each(
  "words,parts",
  REFUSED,
)
def test_refused_in_one_line(words, parts):
  if not any(
    f"--{flag}=" in words for flag in ("algorithm", "client_update", "server")
  ):
    words = f"--algorithm=fedavg {words}"
  with pytest.raises(ValueError) as caught:
    parse_config(words.split(" "))
  assert "\n" not in str(caught.value)
  assert len(str(caught.value)) < 600 or len(words) < 600
  for part in parts.split(" & "):
    assert part in str(caught.value)
  pairs = [word.removeprefix("--").split("=", 1) for word in words.split(" ")]
  if all(len(pair) == 2 for pair in pairs) and "undefok" not in words:
    with pytest.raises(UsageError) as refusal:  # the same by name and value
      config.build_config(
        *(text if name == "flagfile" else {name: text} for name, text in pairs)
      )
    assert str(refusal.value) == str(caught.value)


def test_without_an_algorithm_one_is_asked_for():
  with pytest.raises(ValueError, match="--algorithm.*fedavg"):
    parse_config([])


def test_a_value_may_be_a_word_of_its_own():
  """The word -- may end the flags."""
  words = "--algorithm fedavg --client_lr 1e-2 --overwrite --rounds 3".split()
  parsed = parse_config(words)
  assert parsed.run.rounds == 3
  assert parse_config([*words, "--"]).layers == parsed.layers


@pytest.mark.program
@each("preset", presets.names())
def test_preset_parses(preset):
  words = [f"--flagfile={preset}"]
  paper, *folder, name = preset.split("/")
  if folder:  # methods, or methods_<data>: what the figures put around it
    general = f"{paper}/methods/{name}"
    if general != preset and general in presets.names():
      words.insert(0, f"--flagfile={general}")
    usual = {
      "fedgroup": "mnist_mclr",
      "analytic": "mnist_lr",
      "trust": "niid_bench",
      "beyond": ("board_digits" if folder[0] == "methods" else folder[0]),
    }
    data = folder[0].partition("_")[2] or usual.get(paper, "mnist")
    words.append(f"--flagfile={paper}/{data}.flags")
  if "algorithm=" not in "".join(config.expand_flagfiles(words)):
    words.append("--algorithm=fedavg")
  with shown.built_once():
    assert parse_config(words).run.rounds >= 1


@pytest.mark.program
def test_flag_files_that_cannot_be_read(tmp_path):
  def check_refusal(name, message):
    with pytest.raises(UsageError, match=message):
      config.expand_flagfiles([f"--flagfile={tmp_path}/{name}.flags"])

  def write(name, text):
    (tmp_path / f"{name}.flags").write_text(text, encoding="utf-8")

  (tmp_path / "binary.flags").write_bytes(b"\xff\xfe\x00")
  check_refusal("binary", "binary.flags: cannot be read")
  write("quote", '"--rounds=3\n')
  check_refusal("quote", "quote.flags: cannot be read as")
  write("excel", "\ufeff--rounds=3\n")
  assert config.expand_flagfiles([f"--flagfile={tmp_path}/excel.flags"]) == [
    "--rounds=3"
  ]
  write("loop", f"--flagfile={tmp_path}/loop.flags\n")
  check_refusal("loop", "loop.flags: more than 9 flag files one within another; does")
  write("0", "--rounds=3\n")
  for number in range(1, 10):  # each names the one before
    write(number, f"--flagfile={tmp_path}/{number - 1}.flags\n")
  assert config.expand_flagfiles([f"--flagfile={tmp_path}/8.flags"]) == ["--rounds=3"]
  check_refusal("9", "/0.flags: more than 9 flag")
  for number in range(1, 9):  # ten times: 10^8 words
    write(number, f"--flagfile={tmp_path}/{number - 1}.flags\n" * 10)
  check_refusal("8", "more than 10,000 flags")


def test_the_headline_has_what_validation_chose_for_ma():
  headline = ["--flagfile=diversified/headline.flags"]
  assert (
    parse_config(headline).hparams
    == parse_config(
      [*headline, "--flagfile=diversified/methods/ma_fsvrg.flags"]
    ).hparams
  )
  settings = presets.load_preset("diversified/headline.flags").settings
  assert {row.chosen_by for row in settings} == {"stated", "validation"}


@pytest.mark.parametrize(
  "words, values",
  [
    (
      "--dataset=femnist",
      dict(partition=Natural(), num_clients=200, dataset=Femnist()),
    ),
    (
      "--dataset=shakespeare:/x --model=lstm",
      dict(
        partition=Natural(),
        dataset=Shakespeare("/x"),
        model=models.LSTM(embedding="learned"),
      ),
    ),
    (
      "--newcomers_at=5:60,7:30",
      dict(
        newcomers_at=((5, 60), (7, 30)),
        eval_protocols=("global", "local", "preferred", "newcomers"),
      ),
    ),
    (
      "--newcomers_at=5:60 --eval_protocols=newcomers,local",
      dict(eval_protocols=("newcomers", "local")),
    ),
    (
      "--validation_clients=60 --cohort_size=40 --eval_protocols=validation",
      dict(validation_clients=60, num_clients=100),
    ),
    (
      "--device_cores=2,3 --bandwidth_gbps=.1,1",
      dict(device_cores=(2, 3), bandwidth_gbps=(0.1, 1.0)),
    ),
  ],
)
def test_what_flags_and_defaults_become(words, values):
  actual = parse_config(["--algorithm=fedavg", *words.split()]).values
  assert {name: actual[name] for name in values} == values


@pytest.mark.program
@each(
  "words, others",
  [
    (
      ["--algorithm=fedavg", "--eval_protocols=train"],
      ["--seed=1", "--client_lr=0.2", "--stop_at=train:loss:1"],
    ),
    (["--algorithm=fedavg", "--newcomers_at=5:60,7:30"], ["--newcomers_at=5:60,7:29"]),
    (
      ["--algorithm=fedavg", "--device_cores=2,3", "--bandwidth_gbps=.1,1"],
      [
        "--device_cores=2,4",
        "--bandwidth_gbps=.1,2",
        "--batch_ms=2",
        "--core_gflops=9",
        "--server_gflops=1",
        "--clock_seed=1",
      ],
    ),
    (
      ["--algorithm=fedavg", "--validation_clients=60", "--cohort_size=40"],
      ["--validation_clients=59"],
    ),
    (
      ["--algorithm=fedavg", "--dataset=shakespeare:/x", "--model=lstm"],
      [
        "--dataset=shakespeare:/x,stride=2",
        "--model=lstm:8,8,embedding_size=4",
        "--partition=file:p.npz",
      ],
    ),
    *(
      (["--algorithm=fedavg", f"--dataset=npz:{path}"], [])
      for path in ("/data/with a blank ", " before.npz", '"quoted" \t')
    ),
  ],
)
def test_flags_replay_to_the_same_identity_and_others_to_another(
  words, others, tmp_path
):
  """Blanks at the ends of a value stay; around a typed line they do not count."""
  first, file = parse_config(words), tmp_path / "flags.txt"
  file.write_text("\n".join(first.flag_lines()) + "\n", encoding="utf-8")
  replay = parse_config([f"--flagfile={file}"])
  assert replay == first and replay.identity == first.identity
  file.write_text(file.read_text("utf-8") + "  --rounds=17 \n", "utf-8")
  longer = parse_config([f"--flagfile={file}"])
  assert longer.run.rounds == 17 and longer.identity == first.identity
  for same in ("--out_dir=x", "--tensorboard"):
    assert parse_config([*words, same]).identity == first.identity
  identities = {parse_config([*words, flag]).identity for flag in others}
  assert len(identities - {first.identity}) == len(others)


def test_a_part_of_a_preset_can_be_switched_off(tmp_path):
  """Without it a preset's number refuses the flag that switches it off."""
  file = tmp_path / "a.flags"
  file.write_text("--algorithm=ma_fsvrg\n--server_lr=0.05\n--beta1=0.8\n")
  words = [f"--flagfile={file}", "--noaccelerate"]
  method = parse_config(words).method
  caution = method.entry.caution(method.hparams, 10)
  assert caution == (
    "`beta1`: without effect with `accelerate`=False; "
    "`server_lr`: without effect with `accelerate`=False"
  )
  on = parse_config(words[:1]).method
  assert not on.entry.caution(on.hparams, 10)


@pytest.mark.parametrize(
  "words",
  [
    "--algorithm=fedavg --rounds=3 --targets=0.5,0.75 --noprogress --client_lr=1e-3",
    "--algorithm fedavg --rounds 7 --newcomers_at=4:2 --num_clients=9",
    "--rounds=3 --flagfile=FILE --noaccelerate",  # the file's rounds
    "--flagfile=FILE --rounds=3 --accelerate=false --client_lr=0.25",
    "--client_update=scaffold --server=average",
  ],
)
def test_layers_make_the_run_of_their_words(words, tmp_path):
  file = tmp_path / "a.flags"
  file.write_text("--algorithm=ma_fsvrg\n--rounds=5\n--beta1=0.8\n--noprogress\n")
  words = words.replace("FILE", str(file)).split()
  run, layers = parse_config(words), config.read_layers(words)
  built = config.build_config(*layers)
  assert built == run and built.flag_lines() == run.flag_lines()
  assert parse_config(config.layer_words(layers)) == run
  assert run.override(rounds="9", seed=4) == parse_config(
    [*words, "--rounds=9", "--seed=4"]
  )
  with pytest.raises(UsageError, match="^--rounds=-1: must be"):
    run.override(rounds=-1)


def test_all_values_of_a_list_that_is_given_in_parts_count(tmp_path):
  file = tmp_path / "a.flags"
  file.write_text("--roles=personal:head\n")
  words = [f"--flagfile={file}", "--roles=frozen:a", "--roles", "frozen:b,lora:c"]
  layers = config.read_layers(words)
  roles = config.read_values(config.merge_layers(*layers))["roles"]
  assert roles == ["personal:head", "frozen:a", "frozen:b", "lora:c"]


@each(
  "words, digest",
  [
    ("fedavg", "2ad1c2c95b33"),
    ("fedgroup --num_groups=3", "3091bd14f0da"),
    ("fedavg --dataset=sent140 --model=lstm", "e4096733805c"),
    (
      "fedavg --compress_up=topk:0.3 --attack=sign_flip:0.3",
      "cb37250e5a95",
    ),
    ("ga_fsvrg --num_models=3 --aggregator=median", "9b069c7bb9ab"),
    ("composed --client_update=scaffold --server=adam", "b07a0c892e2b"),
  ],
)
def test_the_identity_of_a_run_stays_what_it_is(words, digest):
  """With another one, no run that was begun would go on, and no figure find its runs.

  Options at their defaults are not in it.
  """
  settings = parse_config(f"--algorithm={words}".split())
  assert settings.identity[:12] == digest
  values = settings.hparams | settings.values
  defaults = [f"--{name}={values[name]}" for name in ("client_lr", "l2")]
  assert parse_config([*settings.flag_lines(), *defaults]).identity == settings.identity
  assert settings.override(client_lr=7).identity != settings.identity


@pytest.mark.parametrize(
  "flag, end, texts",
  [
    ("--sampling=availability_file:", "", ("0.5\n" * 100, "0.5\n" * 99 + "1\n")),
    ("--partition=file:", "", ("0.5\n" * 100, "0.5\n" * 99 + "1\n")),
    ("--sampling=", ":draw", ("def draw(*_):\n  ...\n", "def draw(*_):\n  pass\n")),
  ],
)
def test_a_file_that_a_flag_names_counts_by_its_content(tmp_path, flag, end, texts):
  path, identities = tmp_path / "chances.py", []
  for text in (*texts, texts[0]):
    path.write_text(text, encoding="utf-8")
    identities.append(
      parse_config(["--algorithm=fedavg", f"{flag}{path}{end}"]).identity
    )
  assert identities[0] == identities[2] != identities[1]


@each("algorithm", [None, *registry.ALGORITHMS])
def test_help_names_every_flag_and_hyper_parameter(algorithm):
  names = (
    [flag.name for flag in flags.run_flags()]
    if algorithm is None
    else list(registry.get(algorithm).fields)
  )
  with pytest.raises(config.HelpRequested) as caught:
    run.main.command([f"--algorithm={algorithm}"] * bool(algorithm) + ["--help=all"])
  names_in_help = set(re.findall(r"^  --(\w+)", str(caught.value), re.M))
  assert names_in_help >= set(names)


def test_no_option_is_one_of_a_run_and_of_a_method():
  """Its flag could be put into one of them alone."""
  run_fields = {flag.name for flag in flags.run_flags()}
  assert run_fields >= identity.NEUTRAL
  assert not run_fields & set(flags.hyper_fields())


def test_what_others_call_an_option_leads_to_one_that_is_here():
  """Else an error would recommend what the next error refuses."""
  here = {
    *flags.known_flags(),
    *flags.hyper_fields(),
    *registry.ALGORITHMS,
    *(kind.WORD for kind in parts_of(PARTITIONS)),
    *DATASETS,
    *(kind.WORD for kind in parts_of(models.MODELS)),
    # commands, keywords of Python, and the other commands' flags
    "run",
    "prepare",
    "compare",
    "sweep",
    "seeds",
    "beta",
    "out",
  }
  for name, meanings in errors._SYNONYMS.items():
    assert name == errors.normalize_name(name)
    assert here.issuperset(meanings), (name, meanings)


def test_a_field_of_a_part_is_put_into_it():
  """Without it a sweep would have to write every part out."""
  layers = {"algorithm": "fedavg", "aggregator": "krum"}, {"aggregator.tolerated": ".4"}
  read = config.build_config(*layers)
  assert read.hparams["aggregator"] == Krum(0.4)
  assert "--aggregator=krum:0.4" in read.flag_lines()
  setting = {"aggregator": "krum", "aggregator.tolerated": ".4", "client_lr": "0.10"}
  flags_now = sweeps.flags_of_setting(setting, read)  # a user can type them
  assert flags_now == "--aggregator=krum:0.4 --client_lr=0.10"
  for field, value, says in (
    ("radius", "1", "--aggregator=krum: has no field radius"),
    ("tolerated", "0.7", "--aggregator: krum: tolerated=0.7: must be"),
  ):
    with pytest.raises(UsageError, match=says):
      config.build_config(layers[0], {f"aggregator.{field}": value})


def test_a_field_of_a_model_is_put_into_it():
  """Without it a sweep could not try the sizes of a model."""
  layers = {"algorithm": "fedavg", "model": "mlp"}, {"model.hidden": "8,4"}
  assert config.build_config(*layers).run.model == models.MLP((8, 4))
