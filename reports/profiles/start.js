/* Starts the section, whose elements stand before this script. */

for (const details of document.querySelectorAll("details[data-profile]")) {
  details.addEventListener("toggle", () => startProfile(details), { once: true });
}
addEventListener("hashchange", openProfile);
openProfile();
