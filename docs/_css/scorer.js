// Scores of what is no text: titles, entries of the index and names of the API.
// Texts are ranked by search_rank.js. Guides come before the pages of methods, these
// before the rest, and last the pages of modules, whose titles are names of files.
const LOWERED = [
  ["_api/", 5],
  ["_", 30],
  ["changelog", 25],
  ["architecture", 20],
  ["papers/", 10],
  ["results/", 10],
  ["checked", 10],
  ["options", 4],
  ["methods/", 2],
];
Scorer = {
  score: (result) => {
    if (result[6] === "text") return result[4];
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
