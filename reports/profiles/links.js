/* How does a reader come from a point of a figure to the profile of its case? By a click, or by a link after a tap. */

class ProfileLinks {
  /* `plot`: a figure's, drawn by Plotly; the customdata of a point is where the page has its profile, or null. */
  constructor(plot) {
    Object.assign(this, { plot, offer: null });
    plot.on("plotly_click", ({ points: [{ customdata: anchor }] }) => {
      if (anchor && matchMedia("(hover: hover)").matches) goTo(anchor, plot);
      else this.offerLink(anchor);
    });
  }

  /* A finger's tap shows the card of a point and must not lead away from it. */
  offerLink(anchor) {
    this.offer?.remove();
    this.offer = anchor && element("a", { href: `#${anchor}`, className: "offer", textContent: "Profile of this point" });
    if (this.offer) this.plot.after(this.offer);
  }
}

/* Once the figures are drawn. */
function startLinksToProfiles() {
  const start = () => {
    if (!document.documentElement.dataset.ready) return false;
    for (const plot of document.querySelectorAll("[data-figure] .plot")) if (plot.on) new ProfileLinks(plot);
    return true;
  };
  const observer = new MutationObserver(() => start() && observer.disconnect());
  if (!start()) observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-ready"] });
}
