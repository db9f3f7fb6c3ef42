// The contrast of all text that is visible, and of the edges of controls: [what, kind, ratio, least ratio] by WCAG 2.2.
(() => {
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((one) => (one /= 255) <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ratio = (one, other) => {
    const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    if (!element.checkVisibility() || element.disabled || ['SCRIPT', 'NOSCRIPT', 'OPTION'].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const has = ['TEXTAREA', 'SELECT'].includes(element.tagName) || [...element.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
    const name = `${element.tagName} ${element.id} ${element.className} ${element.textContent.slice(0, 20)}`;
    if (has) found.push([name, 'text', ratio(parse(style.color), behind(element)), 4.5]);
    if (['TEXTAREA', 'SELECT', 'BUTTON'].includes(element.tagName))
      found.push([name, 'edge', ratio(parse(style.borderTopColor), behind(element.parentElement)), 3]);
  }
  return found;
})()
