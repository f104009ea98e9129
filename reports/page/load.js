/* Unpacks the page's scripts and records, and runs its main script. */

/* The text of an element that `packed` of embedding.py wrote: gzip in base 64. */
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/* Runs a packed program; the page's policy allows it by its hash. */
async function run(id) {
  const script = document.createElement("script");
  script.textContent = await unpacked(id);
  document.head.append(script);
}

run("program");
