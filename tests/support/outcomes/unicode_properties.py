"""Write ``structgen/frontends/regex/unicode_properties.txt`` from the Unicode data of Node.js: ``node`` must be there.

A line has the kind (``sc``, ``scx`` or ``bin``), the names and, after a colon, the ranges: base-36 numbers, for each
range the distance from the one before and its size less one. ``scx`` has only scripts that differ from ``sc``.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

__all__ = ["BINARY", "PAGE", "SCRIPTS", "numbered", "ranges_of_node"]

PAGE: Final = Path(__file__).parents[3] / "structgen" / "frontends" / "regex" / "unicode_properties.txt"

SCRIPTS: Final = """
Adlm=Adlam Aghb=Caucasian_Albanian Ahom Arab=Arabic Armi=Imperial_Aramaic Armn=Armenian Avst=Avestan Bali=Balinese
Bamu=Bamum Bass=Bassa_Vah Batk=Batak Beng=Bengali Berf=Beria_Erfe Bhks=Bhaiksuki Bopo=Bopomofo Brah=Brahmi Brai=Braille
Bugi=Buginese Buhd=Buhid Cakm=Chakma Cans=Canadian_Aboriginal Cari=Carian Cham Cher=Cherokee Chrs=Chorasmian
Copt=Coptic=Qaac Cpmn=Cypro_Minoan Cprt=Cypriot Cyrl=Cyrillic Deva=Devanagari Diak=Dives_Akuru Dogr=Dogra Dsrt=Deseret
Dupl=Duployan Egyp=Egyptian_Hieroglyphs Elba=Elbasan Elym=Elymaic Ethi=Ethiopic Gara=Garay Geor=Georgian Glag=Glagolitic
Gong=Gunjala_Gondi Gonm=Masaram_Gondi Goth=Gothic Gran=Grantha Grek=Greek Gujr=Gujarati Gukh=Gurung_Khema Guru=Gurmukhi
Hang=Hangul Hani=Han Hano=Hanunoo Hatr=Hatran Hebr=Hebrew Hira=Hiragana Hluw=Anatolian_Hieroglyphs Hmng=Pahawh_Hmong
Hmnp=Nyiakeng_Puachue_Hmong Hung=Old_Hungarian Ital=Old_Italic Java=Javanese Kali=Kayah_Li Kana=Katakana Kawi
Khar=Kharoshthi Khmr=Khmer Khoj=Khojki Kits=Khitan_Small_Script Knda=Kannada Krai=Kirat_Rai Kthi=Kaithi Lana=Tai_Tham
Laoo=Lao Latn=Latin Lepc=Lepcha Limb=Limbu Lina=Linear_A Linb=Linear_B Lisu Lyci=Lycian Lydi=Lydian Mahj=Mahajani
Maka=Makasar Mand=Mandaic Mani=Manichaean Marc=Marchen Medf=Medefaidrin Mend=Mende_Kikakui Merc=Meroitic_Cursive
Mero=Meroitic_Hieroglyphs Mlym=Malayalam Modi Mong=Mongolian Mroo=Mro Mtei=Meetei_Mayek Mult=Multani Mymr=Myanmar
Nagm=Nag_Mundari Nand=Nandinagari Narb=Old_North_Arabian Nbat=Nabataean Newa Nkoo=Nko Nshu=Nushu Ogam=Ogham
Olck=Ol_Chiki Onao=Ol_Onal Orkh=Old_Turkic Orya=Oriya Osge=Osage Osma=Osmanya Ougr=Old_Uyghur Palm=Palmyrene
Pauc=Pau_Cin_Hau Perm=Old_Permic Phag=Phags_Pa Phli=Inscriptional_Pahlavi Phlp=Psalter_Pahlavi Phnx=Phoenician Plrd=Miao
Prti=Inscriptional_Parthian Rjng=Rejang Rohg=Hanifi_Rohingya Runr=Runic Samr=Samaritan Sarb=Old_South_Arabian
Saur=Saurashtra Sgnw=SignWriting Shaw=Shavian Shrd=Sharada Sidd=Siddham Sidt=Sidetic Sind=Khudawadi Sinh=Sinhala
Sogd=Sogdian Sogo=Old_Sogdian Sora=Sora_Sompeng Soyo=Soyombo Sund=Sundanese Sunu=Sunuwar Sylo=Syloti_Nagri Syrc=Syriac
Tagb=Tagbanwa Takr=Takri Tale=Tai_Le Talu=New_Tai_Lue Taml=Tamil Tang=Tangut Tavt=Tai_Viet Tayo=Tai_Yo Telu=Telugu
Tfng=Tifinagh Tglg=Tagalog Thaa=Thaana Thai Tibt=Tibetan Tirh=Tirhuta Tnsa=Tangsa Todr=Todhri Tols=Tolong_Siki Toto
Tutg=Tulu_Tigalari Ugar=Ugaritic Vaii=Vai Vith=Vithkuqi Wara=Warang_Citi Wcho=Wancho Xpeo=Old_Persian Xsux=Cuneiform
Yezi=Yezidi Yiii=Yi Zanb=Zanabazar_Square Zinh=Inherited=Qaai Zyyy=Common
"""

BINARY: Final = """
ASCII_Hex_Digit=AHex Alphabetic=Alpha Bidi_Control=Bidi_C Bidi_Mirrored=Bidi_M Case_Ignorable=CI Cased
Changes_When_Casefolded=CWCF Changes_When_Casemapped=CWCM Changes_When_Lowercased=CWL Changes_When_NFKC_Casefolded=CWKCF
Changes_When_Titlecased=CWT Changes_When_Uppercased=CWU Dash Default_Ignorable_Code_Point=DI Deprecated=Dep
Diacritic=Dia Emoji Emoji_Component=EComp Emoji_Modifier=EMod Emoji_Modifier_Base=EBase Emoji_Presentation=EPres
Extended_Pictographic=ExtPict Extender=Ext Grapheme_Base=Gr_Base Grapheme_Extend=Gr_Ext Hex_Digit=Hex
IDS_Binary_Operator=IDSB IDS_Trinary_Operator=IDST ID_Continue=IDC ID_Start=IDS Ideographic=Ideo Join_Control=Join_C
Logical_Order_Exception=LOE Math Noncharacter_Code_Point=NChar Pattern_Syntax=Pat_Syn Pattern_White_Space=Pat_WS
Quotation_Mark=QMark Radical Regional_Indicator=RI Sentence_Terminal=STerm Soft_Dotted=SD Terminal_Punctuation=Term
Unified_Ideograph=UIdeo Variation_Selector=VS
"""
"""The properties of ECMA-262, table 70, that ``unicodedata`` does not tell."""

_PROGRAM: Final = r"""
const parts = [];
for (let first = 0; first <= 0x10FFFF; first += 0x1000)
  for (let point = first; point < first + 0x1000; point++)
    if (point < 0xD800 || point > 0xDFFF) parts.push(String.fromCodePoint(point));
const all = parts.join("");
const answer = JSON.parse(require("fs").readFileSync(0, "utf8")).map((property) => {
  const found = [];
  for (const [run] of all.matchAll(new RegExp(`\\p{${property}}+`, "gu"))) {
    const points = [...run];
    let first = points[0].codePointAt(0), last = points[points.length - 1].codePointAt(0);
    if (first < 0xD800 && last > 0xDFFF) found.push([first, 0xD7FF], [0xE000, last]);
    else found.push([first, last]);
  }
  return found;
});
console.log(JSON.stringify({ version: process.versions.unicode, answer }));
"""


def ranges_of_node(properties: list[str]) -> tuple[str, list[list[list[int]]]]:
    """The version of Unicode in Node.js, and the code points of each property as ranges, surrogates left out."""
    ran = subprocess.run(
        ["node", "-e", _PROGRAM], input=json.dumps(properties), capture_output=True, text=True, check=True
    )
    answer = json.loads(ran.stdout)
    return answer["version"], answer["answer"]


def numbered(ranges: list[list[int]]) -> str:
    """Write ranges as distances and sizes."""
    end, numbers = -1, []
    for first, last in ranges:
        numbers += [first - end, last - first]
        end = last
    return " ".join(map(_base_36, numbers))


def _base_36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def main() -> None:
    """Write the page."""
    scripts, binary = ([names.split("=") for names in page.split()] for page in (SCRIPTS, BINARY))
    queries = [
        *(f"sc={names[-1] if len(names) < 3 else names[1]}" for names in scripts),
        *(f"scx={names[0]}" for names in scripts),
        *(names[0] for names in binary),
    ]
    version, found = ranges_of_node(queries)
    lines = [
        f"# Unicode {version}: scripts and binary properties, from Node.js; see https://www.unicode.org/license.txt"
    ]
    own, extended = found[: len(scripts)], found[len(scripts) : 2 * len(scripts)]
    lines += [f"sc {' '.join(names)}:{numbered(ranges)}" for names, ranges in zip(scripts, own, strict=True)]
    lines += [
        f"scx {' '.join(names)}:{numbered(ranges)}"
        for names, ranges, plain in zip(scripts, extended, own, strict=True)
        if ranges != plain
    ]
    lines += [
        f"bin {' '.join(names)}:{numbered(ranges)}"
        for names, ranges in zip(binary, found[2 * len(scripts) :], strict=True)
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
