/* The search of the index: a run is shown if its text in the index contains all words of the search. */

const runs = [...document.querySelectorAll("#runs > li")].map((host) => {
  const own = [...host.querySelectorAll(":scope > :not(.answer)")]; // the answers of comparisons name other runs
  return [host, own.map((each) => each.textContent).join(" ").toLowerCase()];
});
const words = document.getElementById("words");

function search() {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const [host, text] of runs) host.hidden = !wanted.every((word) => text.includes(word));
  document.getElementById("count").textContent = `${runs.filter(([host]) => !host.hidden).length} of ${runs.length} runs`;
}

words.oninput = () => {
  history.replaceState(null, "", words.value ? `#${new URLSearchParams({ search: words.value })}` : location.pathname);
  search();
};
words.form.onsubmit = (event) => event.preventDefault();
words.value = new URLSearchParams(location.hash.slice(1)).get("search") ?? "";
search();
document.documentElement.dataset.ready = "yes";
