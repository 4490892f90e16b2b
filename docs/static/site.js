"use strict";
// A copy button on code, pictures in full size, and a sidebar that opens at the current page. No network.
document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.querySelector("pre").textContent);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    if (navigator.clipboard) code.append(button);
  }

  for (const picture of document.querySelectorAll(".content img")) {
    if (picture.closest("a")) continue;
    const link = document.createElement("a");
    link.href = picture.src;
    link.title = "full size";
    picture.replaceWith(link);
    link.append(picture);
  }

  // What the theme leaves out for the keyboard and screen readers.
  for (const box of document.querySelectorAll("pre, .table-wrapper, .math-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
  for (const heading of document.querySelectorAll("p.caption[role=heading]")) heading.ariaLevel = "2";
  for (const [place, name] of [[".sidebar-drawer", "All pages"], [".toc-drawer", "On this page"]]) {
    document.querySelector(place)?.setAttribute("aria-label", name);
  }

  const page = document.querySelector(".sidebar-tree .current-page");
  for (const caption of document.querySelectorAll(".sidebar-tree p.caption")) {
    const list = caption.nextElementSibling;
    const toggle = document.createElement("button");
    toggle.textContent = caption.textContent;
    const show = (open) => {
      list.hidden = !open;
      toggle.setAttribute("aria-expanded", String(open));
    };
    toggle.addEventListener("click", () => show(list.hidden));
    caption.replaceChildren(toggle);
    show(page ? list.contains(page) : caption.matches(":first-of-type"));
  }
  const scroll = document.querySelector(".sidebar-scroll");
  if (page && scroll) {
    const above = page.getBoundingClientRect().top - scroll.getBoundingClientRect().top;
    scroll.scrollTop += above - scroll.clientHeight / 2;
  }
});
