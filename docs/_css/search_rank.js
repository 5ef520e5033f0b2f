// Ranks the pages that a search finds in texts: BM25 over one number for each word
// and page (SEARCH_COUNTS, made by docs/_extensions/search_words.py; words in
// headings and the page's words for the search count more often). Sphinx itself
// only knows whether a word is on a page. docs/check_search.py does the same.
"use strict";

// Pages and what their scores are multiplied by: guides are what most people want.
const PRIORS = [
  ["_modules_of/", 0.2],
  ["_api/", 0.6],
  ["changelog", 0.2],
  ["architecture", 0.5],
  ["results/", 0.4],
  ["papers/", 0.5],
  ["checked", 0.5],
  ["options", 0.7],
  ["api", 0.6],
  ["methods/", 0.8],
  ["index", 0.5],
  ["glossary", 0.8],
];
// Who types one of these (stems) looks for results.
const ABOUT_RESULTS = [
  "accuraci", "claim", "figur", "map", "reach", "reproduc", "result", "studi", "tabl",
  "verdict",
];
const RANK = { saturation: 12, length: 0.25, part: 0.5, title: 0.3 };

const priorOf = (page, words) => {
  const isResult = page.startsWith("results/") || page.startsWith("papers/");
  if (isResult && words.some((word) => ABOUT_RESULTS.includes(word))) return 1;
  const prior = PRIORS.find(([start]) => page.startsWith(start));
  return prior ? prior[1] : 1;
};

// The stem of "cifar-10" is that of cifar10, as pages write it.
const joinNumbers = (query) => query.replace(/(\p{Letter})-(\d)/gu, "$1$2");

const rankTexts = (words) => {
  const { counts, lengths, titles } = SEARCH_COUNTS;
  const pages = Object.keys(lengths);
  const mean = pages.reduce((sum, page) => sum + lengths[page], 0) / pages.length;
  const scores = {};
  const matches = {};
  for (const word of words) {
    let numbers = Object.hasOwn(counts, word) ? counts[word] : null;
    if (numbers === null && word.length > 3) {
      numbers = {}; // pages with words of which it is a part
      for (const [longer, of] of Object.entries(counts)) {
        if (!longer.includes(word)) continue;
        for (const [page, number] of Object.entries(of))
          numbers[page] = (numbers[page] || 0) + RANK.part * number;
      }
    }
    const found = Object.entries(numbers || {});
    const rarity = Math.log(1 + (pages.length - found.length + 0.5) / (found.length + 0.5));
    for (const [place, number] of found) {
      const page = pages[place];
      const long = 1 - RANK.length + (RANK.length * lengths[page]) / mean;
      const score =
        (rarity * number * (RANK.saturation + 1)) / (number + RANK.saturation * long);
      scores[page] = (scores[page] || 0) + score;
      matches[page] = (matches[page] || 0) + 1;
    }
  }
  for (const page of Object.keys(scores)) {
    const title = titles[page];
    const share = title.filter((word) => words.includes(word)).length;
    scores[page] *=
      (matches[page] / words.length) ** 2 *
      priorOf(page, words) *
      (1 + (RANK.title * share) / Math.max(title.length, 1));
  }
  return scores;
};

if (typeof Search !== "undefined" && typeof SEARCH_COUNTS !== "undefined") {
  const parse = Search._parseQuery;
  Search._parseQuery = (query) => {
    const parsed = parse(joinNumbers(query));
    parsed[0] = query;
    return parsed;
  };
  Search.performTermsSearch = (searchTerms) => {
    const index = Search._index;
    return Object.entries(rankTexts([...searchTerms])).map(([page, score]) => {
      const file = index.docnames.indexOf(page);
      return [
        page, index.titles[file], "", null, score, index.filenames[file],
        SearchResultKind.text,
      ];
    });
  };
}
