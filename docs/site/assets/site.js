// What scrolls sideways can be reached and scrolled with the keyboard: code, pictures and tables.
function makeReachable() {
  for (const each of document.querySelectorAll('.md-typeset pre > code, .md-typeset figure, .md-typeset__scrollwrap')) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute('tabindex');
  }
}

addEventListener('load', makeReachable);
addEventListener('resize', makeReachable);
addEventListener('change', makeReachable);  // another tab
