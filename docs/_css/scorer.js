// Guides come before the pages of methods, these before results, the architecture
// and the changelog, and last the pages of modules, whose titles are names of files.
const LOWERED = [
  ["_api/", 5],
  ["_", 30],
  ["changelog", 25],
  ["architecture", 20],
  ["results/", 20],
  ["papers/", 15],
  ["checked", 10],
  ["options", 4],
  ["methods/", 2],
];
Scorer = {
  score: (result) => {
    const lowered = LOWERED.find(([start]) => result[0].startsWith(start));
    return result[4] - (lowered ? lowered[1] : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
