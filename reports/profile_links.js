/* How does a reader come from a point of a figure to the profile of its case? By a click, by Enter, by a link after a tap. */

class ProfileLinks {
  /* `plot`: a figure's, drawn by Plotly; the customdata of a point is where the page has its profile, or null. */
  constructor(plot) {
    Object.assign(this, { plot, offer: null });
    plot.on("plotly_click", ({ points: [{ customdata: anchor }] }) => {
      if (anchor && matchMedia("(hover: hover)").matches) location.hash = anchor;
      else this.offerLink(anchor);
    });
    // Where the figure itself does not lead the keyboard from point to point.
    if (plot.tabIndex < 0) {
      plot.on("plotly_afterplot", () => this.focusable());
      this.focusable();
    }
  }

  /* A finger's tap shows the card of a point and must not lead away from it. */
  offerLink(anchor) {
    this.offer?.remove();
    this.offer = anchor && element("a", { href: `#${anchor}`, className: "offer", textContent: "Profile of this point" });
    if (this.offer) this.plot.after(this.offer);
  }

  focusable() {
    for (const group of this.plot.querySelectorAll(".xy .scatterlayer .trace")) {
      const curve = this.plot.data.indexOf(group.__data__[0].trace._input);
      group.querySelectorAll(".points path").forEach((node, at) => this.makeLink(node, curve, at));
    }
  }

  makeLink(node, curve, at) {
    const { customdata, hovertext } = this.plot.data[curve] ?? {};
    if (!customdata?.[at]) return;
    node.classList.add("profiled-point");
    for (const [name, value] of Object.entries({ tabindex: 0, role: "link" })) node.setAttribute(name, value);
    node.setAttribute("aria-label", hovertext[at].replaceAll(/<[^>]*>/g, " "));
    node.onfocus = () => Plotly.Fx.hover(this.plot, [{ curveNumber: curve, pointNumber: at }]);
    node.onblur = () => Plotly.Fx.unhover(this.plot);
    node.onkeydown = (event) => {
      if (event.key === "Enter") location.hash = customdata[at];
    };
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
