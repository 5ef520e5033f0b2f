"""Patients of four hospitals: AUROC at each, over five splits, and new patients."""

import pandas as pd

import fedjax_alg as fa

rows = pd.read_csv("patients.csv", dtype={"ward": "category", "sex": "category"})
data = fa.from_dataframe(rows, y="ill", client="site", task="binary", missing="mean")
splits = fa.federate(
  data, features="standardize", partition="natural:stratified", partitions=5
)
result = fa.run("fedavg", splits, cohort_size=4, rounds=20, class_weights="balanced")
for site in result.client_names:
  print(site, result.estimate("auroc", "local", client=site))
print(result.estimate("client_auroc", "local"))  # mean, half-width of 95 % over splits
print(result.predict(pd.read_csv("new_patients.csv"), proba=True)[:, 1])
