"""Speed and memory on the machine at hand; nothing here is a test.

  python -m benchmarks.vs_fedjax    FedAvg here and in FedJAX, in turn
  python -m benchmarks.phases       one MA- or GA-FSVRG round, by phase

Times are steady-state with a barrier; compiling is reported apart. Cores that
are busy with something else make all of them longer: read the ratios, and the
least of several measurements.
"""
