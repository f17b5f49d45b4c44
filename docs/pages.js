// Wide tables scroll on a phone: a keyboard must reach them too.
window.addEventListener("load", () =>
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => { table.tabIndex = 0; }));
