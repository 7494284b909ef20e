// Fetches the page again and puts its main part in place of the shown one; not while nobody looks at
// it, or while text is selected.
(() => {
  const everyMs = 1000 * Number(document.documentElement.dataset.refresh);
  const status = document.getElementById("status");
  if (!everyMs) return;

  function show(main) {
    const shown = document.querySelector("main");
    const scrolled = new Map();
    for (const box of shown.querySelectorAll(".scroll")) {
      scrolled.set(box.getAttribute("aria-labelledby"), [box.scrollLeft, box.scrollTop]);
    }
    const focused = shown.contains(document.activeElement)
      ? document.activeElement.getAttribute("aria-labelledby") : null;
    shown.replaceWith(main);
    for (const box of main.querySelectorAll(".scroll")) {
      const key = box.getAttribute("aria-labelledby");
      [box.scrollLeft, box.scrollTop] = scrolled.get(key) || [0, 0];
      if (focused === key) box.focus({ preventScroll: true });
    }
  }

  async function refresh() {
    if (!document.hidden && !String(getSelection())) {
      try {
        const signal = AbortSignal.timeout(10000);
        const answer = await fetch(location.href, { cache: "no-store", signal });
        const text = await answer.text();
        const main = new DOMParser().parseFromString(text, "text/html").querySelector("main");
        if (!main) throw new Error(`HTTP ${answer.status}`);
        show(main);
        status.textContent = new Date().toLocaleTimeString();
        status.className = "";
      } catch (error) {
        status.textContent = `no answer (${error.message})`;
        status.className = "warn";
      }
    }
    setTimeout(refresh, everyMs);
  }

  setTimeout(refresh, everyMs);
})();
